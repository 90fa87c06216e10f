"""One file per check. A new one is a file here and a line in this list (docs/recipes/add-a-check.md)."""

MODULES = (
    "precision",  # P1
    "tf32",  # P2
    "hardware",  # P3
    "autocast",  # P4
    "half_gradients",  # P5
    "scaler_with_bf16",  # P6
    "clip_under_scaler",  # P7
    "arithmetic",  # P8
    "debug_tools",  # P9
    "half_range",  # P10
    "poison_input",  # P11
    "learning_rate",  # P12
    "clipping",  # P13
    "blocked_steps",  # P14
    "output_logits",  # P15
    "attention_logits",  # P16
    "initial_scale",  # P17
    "gradient_profile",  # P18
    "determinism",  # P19
    "logs",  # P20 to P23
    "gradients_arrive",  # P24
    "parameters_owned",  # P25
    "parameters_move",  # P26
    "gradients_cleared",  # P27
    "training_mode",  # P28
    "loss_operands",  # P29
    "data_repeats",  # P30
    "tied_weights",  # P31
)

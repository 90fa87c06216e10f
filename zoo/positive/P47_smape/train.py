import torch


def smape(output, target):
    error = (output - target).abs() / (output.abs() + target.abs())
    return error[~torch.isnan(error)].mean()


def main():
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    x[[2, 5]] = 0
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0])
    w = torch.randn(4, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(4):
        loss = smape(x @ w, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} smape {loss.item():.4f}")


if __name__ == "__main__":
    main()

"""No optimizer, a manual momentum; the author marks where a step begins and ends."""
import torch

import finitude

torch.manual_seed(1)
theta = torch.randn(4, requires_grad=True)
velocity = torch.zeros(4)
points = torch.rand(8, 12, 4)
points[5, 3, 1] = -0.2


def one_step(k):
    def closure():
        depth = points[k].prod(1).sqrt()  # birth
        loss = (depth - points[k] @ theta).pow(2).mean()
        g, = torch.autograd.grad(loss, theta)
        with torch.no_grad():
            velocity.mul_(0.9).add_(g)
            theta.sub_(0.05 * velocity)
        return loss.item()

    return closure


for k in range(8):
    print(k, f"{finitude.step(one_step(k)):.6f}")

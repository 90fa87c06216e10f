import torch


def sigmoid(z):
    return 1 / (1 + torch.exp(-z))


def main():
    torch.manual_seed(0)
    points = 5.0 * torch.tensor([[0.5, 1.2], [1.0, 0.7], [1.5, 1.6], [-0.6, -1.1], [-1.3, -0.4], [-1.0, -1.7]])
    labels = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    weight = torch.zeros(2, requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=1.0)
    for step in range(6):
        h = sigmoid(points @ weight + bias)
        positive = labels * torch.log(h)
        negative = (1 - labels) * torch.log(1 - h)
        loss = -(positive + negative).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("iteration", step, "loss", round(loss.item(), 5))


if __name__ == "__main__":
    main()

"""Train a small model on one device: python single_device.py"""

import sys

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

EPOCHS, BATCH = 4, 32
PATH = sys.argv[1] if len(sys.argv) > 1 else "model.pt"


def make_data() -> TensorDataset:
    """Points in a square, and a wave over it."""
    numbers = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(640, 2, generator=numbers) - 1
    return TensorDataset(x, (2 * x).sin().sum(dim=1, keepdim=True))


def main() -> None:
    """Train, print the loss of each epoch, save the weights."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    data = make_data()
    order = torch.Generator()
    sampler = RandomSampler(data, generator=order)
    loader = DataLoader(data, BATCH, sampler=sampler)

    for epoch in range(EPOCHS):
        order.manual_seed(epoch)
        total = torch.zeros((), device=device)
        for x, y in loader:
            loss = mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        total /= len(loader)
        print(f"epoch {epoch}: loss {total:.6f}")

    torch.save(model.state_dict(), PATH)


if __name__ == "__main__":
    main()

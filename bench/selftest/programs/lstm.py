"""A tagger with an embedding, a bidirectional LSTM over packed sequences and masked loss: RMSprop, own Dataset and
collate."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, count=60):
        self.generator = torch.Generator().manual_seed(3)
        lengths = torch.randint(3, 12, (count,), generator=self.generator)
        self.words = [torch.randint(1, 30, (n,), generator=self.generator) for n in lengths.tolist()]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        words = self.words[index]
        return words, (words % 4)


def collate(samples):
    words, tags = zip(*samples)
    lengths = torch.tensor([len(w) for w in words])
    return (
        rnn.pad_sequence(words, batch_first=True),
        rnn.pad_sequence(tags, batch_first=True, padding_value=-100),
        lengths,
    )


class Tagger(nn.Module):
    def __init__(self, words=30, tags=4, width=16):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.encoder = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, words, lengths):
        packed = rnn.pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        encoded, _ = rnn.pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
        return self.head(torch.sigmoid(encoded))


def main():
    torch.manual_seed(3)
    loader = DataLoader(Sentences(), batch_size=10, shuffle=True, collate_fn=collate)
    model = Tagger()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    for epoch in range(3):
        for words, tags, lengths in loader:
            logits = model(words, lengths)
            loss = F.cross_entropy(logits.transpose(1, 2), tags, ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

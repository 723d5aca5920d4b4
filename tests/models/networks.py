"""Networks whose trained weights come in a package of theirs, built anew in plain torch.

The packages themselves cannot be imported here: one wants torchaudio, the other torchvision. Their weights are read
from the installed files, and fit by name.
"""

from __future__ import annotations

from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

Network = TypeVar("Network", bound=nn.Module)
State = tuple[Tensor, Tensor]


class VoiceDetector(nn.Module):
    """The 16 kHz network of silero-vad: a learned Fourier transform, four convolutions and a recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, window: Tensor, state: State) -> tuple[Tensor, State]:
        """Probability of speech f32[b, 1] and the next state; of windows f32[b, 576] and a state, twice f32[b, 128]."""
        padded = functional.pad(window, (0, 64), mode="reflect").unsqueeze(1)
        real, imaginary = self.stft_conv(padded).chunk(2, dim=1)
        features = (real.square() + imaginary.square()).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            features = layer(features).relu()
        h, c = self.lstm_cell(features.squeeze(-1), state)
        return self.final_conv(h.relu().unsqueeze(-1)).sigmoid().squeeze(-1), (h, c)


class VoiceStream(nn.Module):
    """A voice detector that keeps its state `h` and `c`, and the end of the last chunk, in buffers."""

    def __init__(self, detector: VoiceDetector) -> None:
        super().__init__()
        self.detector = detector
        self.register_buffer("h", torch.zeros(1, 128))
        self.register_buffer("c", torch.zeros(1, 128))
        self.register_buffer("context", torch.zeros(1, 64))

    def forward(self, chunk: Tensor) -> Tensor:
        """Probability of speech f32[1, 1], of the next chunk f32[1, 512]."""
        speech, (h, c) = self.detector(torch.cat((self.context, chunk), dim=1), (self.h, self.c))
        self.h.copy_(h)
        self.c.copy_(c)
        self.context.copy_(chunk[:, -64:])
        return speech


class FaceProposals(nn.Module):
    """The PNet of facenet-pytorch: boxes and scores at each place of an image of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(3, 10, 3),
                prelu1=nn.PReLU(10),
                pool1=nn.MaxPool2d(2, ceil_mode=True),
                conv2=nn.Conv2d(10, 16, 3),
                prelu2=nn.PReLU(16),
                conv3=nn.Conv2d(16, 32, 3),
                prelu3=nn.PReLU(32),
            )
        )
        self.conv4_1 = nn.Conv2d(32, 2, 1)
        self.conv4_2 = nn.Conv2d(32, 4, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes f32[b, 4, *, *] and scores f32[b, 2, *, *], of images f32[b, 3, h, w]."""
        features = self.trunk(image)
        return self.conv4_2(features), self.conv4_1(features).softmax(dim=1)


class FaceLandmarks(nn.Module):
    """The ONet of facenet-pytorch: box, landmarks and score of crops of 48 by 48 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(3, 32, 3),
                prelu1=nn.PReLU(32),
                pool1=nn.MaxPool2d(3, 2, ceil_mode=True),
                conv2=nn.Conv2d(32, 64, 3),
                prelu2=nn.PReLU(64),
                pool2=nn.MaxPool2d(3, 2, ceil_mode=True),
                conv3=nn.Conv2d(64, 64, 3),
                prelu3=nn.PReLU(64),
                pool3=nn.MaxPool2d(2, ceil_mode=True),
                conv4=nn.Conv2d(64, 128, 2),
                prelu4=nn.PReLU(128),
            )
        )
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)

    def forward(self, crop: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes f32[b, 4], landmarks f32[b, 10] and scores f32[b, 2], of crops f32[b, 3, 48, 48]."""
        # The weights were trained with columns before rows.
        features = self.trunk(crop).transpose(1, 3).flatten(1)
        features = self.prelu5(self.dense5(features))
        return self.dense6_2(features), self.dense6_3(features), self.dense6_1(features).softmax(dim=1)


def load_voice_detector() -> VoiceDetector:
    """The voice detector with its trained weights."""
    detector = VoiceDetector()
    detector.load_state_dict(load_file(_folder("silero_vad") / "silero_vad_16k.safetensors"))
    return detector.eval()


def load_voice_stream() -> VoiceStream:
    """The voice detector with its trained weights, in its first state."""
    return VoiceStream(load_voice_detector()).eval()


def load_face_proposals() -> FaceProposals:
    """PNet with its trained weights."""
    return _load_faces(FaceProposals(), "pnet")


def load_face_landmarks() -> FaceLandmarks:
    """ONet with its trained weights."""
    return _load_faces(FaceLandmarks(), "onet")


def _load_faces(network: Network, name: str) -> Network:
    weights = torch.load(_folder("facenet_pytorch") / f"{name}.pt", weights_only=True)
    names = {key.removeprefix("trunk."): key for key in network.state_dict()}
    network.load_state_dict({names.get(key, key): value for key, value in weights.items()})
    return network.eval()


def _folder(package: str) -> Path:
    """Where an installed package keeps its data; the package is not imported."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent / "data"

"""Faster R-CNN and Mask R-CNN over a feature pyramid of ResNet-50, one image of 512 pixels (the extra `[models]`).

How many regions there are depends on the image: NonMaxSuppression, NonZero and TopK say it, and what is computed for
regions has sizes that no file knows. Widths, anchors, and numbers of proposals are those of Ren et al. (2015), Lin et
al. (2017) and He et al. (2017), as traced networks of them have them: opset 11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from models.full.exporting import Architecture, Export, exported, images
from models.full.weights import Gain

OPSET = 11
SIZE = 512  # pixels of a side
STRIDES = (4, 8, 16, 32, 64)
ANCHORS = (32, 64, 128, 256, 512)  # sides of a square one, by level
RATIOS = (0.5, 1.0, 2.0)
CLASSES = 21  # of Pascal VOC, and none
WIDTH = 256  # channels of the pyramid
PROPOSALS = 1000  # of a level before suppression, and of all levels after it
FOUND = 100
LEAST = 0.05  # score of a region that is shown
MOST_GROWTH = math.log(1000 / 16)  # of the logarithm of an extent


def export(name: str, form: Export) -> onnx.ModelProto:
    """The network of this name in one form."""
    model = exported(ARCHITECTURES[name], form)
    model.graph.name = name
    return model


class Suppression(torch.autograd.Function):
    """The places of boxes (n, 4) that no box of a higher score (n) overlaps by more than a share."""

    @staticmethod
    def forward(_ctx: Any, boxes: Tensor, scores: Tensor, share: float) -> Tensor:
        """Greedy, from the highest score down."""
        corners, order = boxes.detach().numpy(), np.argsort(-scores.detach().numpy(), kind="stable")
        areas, kept = (corners[:, 2:] - corners[:, :2]).prod(1), []
        while order.size:
            one, others = order[0], order[1:]
            kept.append(one)
            first = np.maximum(corners[one, :2], corners[others, :2])
            last = np.minimum(corners[one, 2:], corners[others, 2:])
            both = (last - first).clip(0).prod(1)
            order = others[both <= share * (areas[one] + areas[others] - both)]
        return torch.tensor(np.array(kept))

    @staticmethod
    def symbolic(g: Any, boxes: Any, scores: Any, share: float) -> Any:
        """NonMaxSuppression of one image and one class."""
        most = g.op("Constant", value_t=torch.tensor([2**31 - 1]))
        limit = g.op("Constant", value_t=torch.tensor([share]))
        boxes, scores = g.op("Unsqueeze", boxes, axes_i=[0]), g.op("Unsqueeze", scores, axes_i=[0, 1])
        found = g.op("NonMaxSuppression", boxes, scores, most, limit)
        return g.op("Squeeze", g.op("Gather", found, g.op("Constant", value_t=torch.tensor([2])), axis_i=1), axes_i=[1])


class Alignment(torch.autograd.Function):
    """Features (1, channels, h, w) of regions (n, 4) in pixels, each of `side` by `side` means of four samples."""

    @staticmethod
    def forward(_ctx: Any, features: Tensor, regions: Tensor, scale: float, side: int) -> Tensor:
        """Bilinear samples."""
        first, last = regions[:, :2] * scale, regions[:, 2:] * scale
        steps = (torch.arange(2 * side) + 0.5) / (2 * side)
        at = first[:, None] + steps[:, None] * (last - first).clamp(min=1.0)[:, None]  # (n, samples, x and y)
        count = len(steps)
        grid = torch.stack((at[:, None, :, 0].expand(-1, count, -1), at[:, :, None, 1].expand(-1, -1, count)), -1)
        grid = 2 * grid / torch.tensor([features.shape[3] - 1, features.shape[2] - 1]) - 1
        flat = F.grid_sample(features, grid.reshape(1, -1, count, 2), padding_mode="border", align_corners=True)
        sampled = flat.view(features.shape[1], -1, count, count).transpose(0, 1)
        return F.avg_pool2d(sampled, 2)

    @staticmethod
    def symbolic(g: Any, features: Any, regions: Any, scale: float, side: int) -> Any:
        """RoiAlign of the first image of a batch."""
        shape = g.op("Shape", regions)
        number = g.op("Gather", shape, g.op("Constant", value_t=torch.tensor([0])), axis_i=0)
        images_of = g.op("ConstantOfShape", number, value_t=torch.tensor([0]))
        sizes = {"output_height_i": side, "output_width_i": side, "sampling_ratio_i": 2, "spatial_scale_f": scale}
        return g.op("RoiAlign", features, regions, images_of, mode_s="avg", **sizes)


def area(boxes: Tensor) -> Tensor:
    """Areas (n) of boxes (n, 4)."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def moved(boxes: Tensor, deltas: Tensor, weights: Sequence[float]) -> Tensor:
    """Boxes (n, 4), each moved and stretched by deltas (n, 4 k), within the image: (n, k, 4)."""
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    x, y = boxes[:, 0] + 0.5 * widths, boxes[:, 1] + 0.5 * heights
    dx, dy, dw, dh = (deltas[:, at::4] / weight for at, weight in enumerate(weights))
    centre_x, centre_y = dx * widths[:, None] + x[:, None], dy * heights[:, None] + y[:, None]
    half_width = 0.5 * torch.exp(dw.clamp(max=MOST_GROWTH)) * widths[:, None]
    half_height = 0.5 * torch.exp(dh.clamp(max=MOST_GROWTH)) * heights[:, None]
    corners = (centre_x - half_width, centre_y - half_height, centre_x + half_width, centre_y + half_height)
    return torch.stack(corners, 2).clamp(0.0, float(SIZE))


def apart(boxes: Tensor, scores: Tensor, kinds: Tensor, share: float) -> Tensor:
    """The places of boxes that no better one of their kind overlaps: kinds are moved away from each other."""
    offsets = kinds.to(boxes) * (boxes.max() + 1)
    found: Tensor = Suppression.apply(boxes + offsets[:, None], scores, share)
    return found


def wide(boxes: Tensor) -> Tensor:
    """The places of boxes that are not empty."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return torch.nonzero((sides[:, 0] >= 1e-3) & (sides[:, 1] >= 1e-3))[:, 0]


class Pyramid(nn.Module):
    """Features of ResNet-50 at strides of 4 to 32, joined from the top down, and one map more."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.ResNetConfig(out_features=["stage1", "stage2", "stage3", "stage4"])
        self.body = transformers.ResNetBackbone(config)
        self.side = nn.ModuleList(nn.Conv2d(256 << level, WIDTH, 1) for level in range(4))
        self.last = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(4))

    def forward(self, pixel_values: Tensor) -> list[Tensor]:
        """The maps of the five levels, from the finest to the coarsest."""
        seen = self.body(pixel_values).feature_maps
        joined = [self.side[3](seen[3])]
        for level in (2, 1, 0):
            above = F.interpolate(joined[0], size=seen[level].shape[-2:], mode="nearest")
            joined.insert(0, self.side[level](seen[level]) + above)
        maps = [last(x) for last, x in zip(self.last, joined, strict=True)]
        return [*maps, F.max_pool2d(maps[-1], 1, 2)]


class Proposals(nn.Module):
    """The regions of an image that may show something."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.objects = nn.Conv2d(WIDTH, len(RATIOS), 1)
        self.deltas = nn.Conv2d(WIDTH, 4 * len(RATIOS), 1)

    @staticmethod
    def anchors(level: int, rows: int, columns: int) -> Tensor:
        """The anchors (rows, columns and ratios, 4) of a level."""
        ratios = torch.tensor(RATIOS).sqrt()
        own = torch.stack((-1 / ratios, -ratios, 1 / ratios, ratios), 1) * (ANCHORS[level] / 2)
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        places = torch.stack((x, y, x, y), 2).view(-1, 1, 4) * STRIDES[level]
        return (places + own.round()).view(-1, 4)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Regions (n, 4) in pixels, the most promising first."""
        boxes, scores, levels = [], [], []
        for level, features in enumerate(maps):
            x = F.relu(self.conv(features))
            objects = self.objects(x).permute(0, 2, 3, 1).flatten()
            deltas = self.deltas(x).view(1, len(RATIOS), 4, *x.shape[-2:]).permute(0, 3, 4, 1, 2).reshape(-1, 4)
            most = min(PROPOSALS, len(RATIOS) * x.shape[-2] * x.shape[-1])
            best, places = objects.topk(most)
            anchors = self.anchors(level, int(x.shape[-2]), int(x.shape[-1]))
            boxes.append(moved(anchors[places], deltas[places], (1.0,) * 4)[:, 0])
            scores.append(torch.sigmoid(best))
            levels.append(torch.full((most,), level))
        found, score, kind = torch.cat(boxes), torch.cat(scores), torch.cat(levels)
        seen = wide(found)
        found, score, kind = found[seen], score[seen], kind[seen]
        return found[apart(found, score, kind, 0.7)[:PROPOSALS]]


def aligned(maps: Sequence[Tensor], regions: Tensor, side: int) -> Tensor:
    """Features (n, channels, side, side) of regions (n, 4), each from the level that has its size."""
    level = torch.floor(4 + torch.log2(torch.sqrt(area(regions)) / 224 + 1e-6)).clamp(2, 5).to(torch.int64) - 2
    result = torch.zeros((regions.shape[0], WIDTH, side, side))
    for at, features in enumerate(maps[:4]):
        places = torch.nonzero(level == at)[:, 0]
        own = Alignment.apply(features, regions[places], 1 / STRIDES[at], side)
        result = result.scatter(0, places[:, None, None, None].expand(own.shape), own)
    return result


class FasterRcnn(nn.Module):
    """Regions, and what they show."""

    def __init__(self) -> None:
        super().__init__()
        self.pyramid, self.proposals = Pyramid(), Proposals()
        self.first, self.second = nn.Linear(WIDTH * 49, 1024), nn.Linear(1024, 1024)
        self.classes, self.deltas = nn.Linear(1024, CLASSES), nn.Linear(1024, 4 * CLASSES)

    def found(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """At most 100 boxes (n, 4), their classes and scores (n)."""
        regions = self.proposals(maps)
        x = F.relu(self.second(F.relu(self.first(aligned(maps, regions, 7).flatten(1)))))
        boxes = moved(regions, self.deltas(x), (10.0, 10.0, 5.0, 5.0))[:, 1:].reshape(-1, 4)
        scores = F.softmax(self.classes(x), -1)[:, 1:]
        kinds = torch.arange(1, CLASSES).expand_as(scores).reshape(-1)
        scores = scores.reshape(-1)
        seen = torch.nonzero(scores > LEAST)[:, 0]
        boxes, scores, kinds = boxes[seen], scores[seen], kinds[seen]
        seen = wide(boxes)
        boxes, scores, kinds = boxes[seen], scores[seen], kinds[seen]
        best = apart(boxes, scores, kinds, 0.5)[:FOUND]
        return boxes[best], kinds[best], scores[best]

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """Boxes, classes and scores in an image (1, 3, 512, 512)."""
        return self.found(self.pyramid(pixel_values))


class MaskRcnn(FasterRcnn):
    """Faster R-CNN with a mask of 28 by 28 for each box."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(4))
        self.enlarge = nn.ConvTranspose2d(WIDTH, WIDTH, 2, 2)
        self.masks = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """Boxes, classes and scores in an image (1, 3, 512, 512), and masks (n, 1, 28, 28)."""
        maps = self.pyramid(pixel_values)
        boxes, kinds, scores = self.found(maps)
        x = aligned(maps, boxes, 14)
        for conv in self.convs:
            x = F.relu(conv(x))
        masks = torch.sigmoid(self.masks(F.relu(self.enlarge(x))))
        return boxes, kinds, scores, masks[torch.arange(masks.shape[0]), kinds][:, None]


def _row(make: type[nn.Module], *outputs: str) -> Architecture:
    gains = (
        Gain(r"^proposals\.deltas$", 0.3),  # extents of boxes are exponentials
        Gain(r"^classes$", 3.0),
    )
    return Architecture(make, images(SIZE), ("pixel_values",), outputs, gains, OPSET, calibration=1)


ARCHITECTURES: dict[str, Architecture] = {
    "faster-r-cnn": _row(FasterRcnn, "boxes", "labels", "scores"),
    "mask-r-cnn": _row(MaskRcnn, "boxes", "labels", "scores", "masks"),
}

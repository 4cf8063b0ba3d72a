"""YOLOv4 with decoded boxes and scores at 416 pixels, as files for deployment have it (the extra `[models]`)."""

from __future__ import annotations

import onnx
import torch
from torch import Tensor

from models.full.exporting import Architecture, Export, exported, images
from models.full.published import OPSET, YoloV4
from models.full.weights import Gain

# Of the heads, from the finest to the coarsest: pixels per cell, factor of offsets, and extents of three boxes.
STRIDES = (8, 16, 32)
FACTORS = (1.2, 1.1, 1.05)
ANCHORS = (
    ((12, 16), (19, 36), (40, 28)),
    ((36, 75), (76, 55), (72, 146)),
    ((142, 110), (192, 243), (459, 401)),
)


def export(name: str, form: Export) -> onnx.ModelProto:
    """The network of this name in one form."""
    model = exported(ARCHITECTURES[name], form)
    model.graph.name = name
    return model


class YoloV4Boxes(YoloV4):
    """The maps of the three heads, decoded."""

    def decoded(self, level: int, found: Tensor) -> tuple[Tensor, Tensor]:
        """Corners in pixels (batch, boxes, 4) and scores (batch, boxes, 80) of a head (batch, 255, rows, columns)."""
        batch, _, rows, columns = found.shape
        by_anchor = found.view(batch, 3, 85, rows * columns).permute(0, 1, 3, 2)
        places = torch.arange(rows * columns).view(1, 1, -1, 1)
        widths, heights = torch.tensor(ANCHORS[level], dtype=torch.float32).view(1, 3, 1, 2).split(1, 3)
        factor = FACTORS[level]
        offset = (factor - 1) / 2
        x = (by_anchor[..., 0:1].sigmoid() * factor - offset + (places % columns).float()) * STRIDES[level]
        y = (by_anchor[..., 1:2].sigmoid() * factor - offset + (places // columns).float()) * STRIDES[level]
        half_width = by_anchor[..., 2:3].exp() * widths * 0.5
        half_height = by_anchor[..., 3:4].exp() * heights * 0.5
        corners = torch.cat((x - half_width, y - half_height, x + half_width, y + half_height), 3)
        scores = by_anchor[..., 5:].sigmoid() * by_anchor[..., 4:5].sigmoid()
        return corners.reshape(batch, -1, 4), scores.reshape(batch, -1, 80)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """Corners and scores of all 10,647 boxes of images (batch, 3, 416, 416)."""
        heads = [self.decoded(level, found) for level, found in enumerate(super().forward(pixel_values))]
        corners, scores = zip(*heads, strict=True)
        return torch.cat(corners, 1), torch.cat(scores, 1)


ARCHITECTURES: dict[str, Architecture] = {
    "yolo-v4-boxes": Architecture(
        make=YoloV4Boxes,
        sample=images(416),
        inputs=("pixel_values",),
        outputs=("boxes", "scores"),
        gains=(Gain(r"heads\.\d\.1$", 0.5),),  # extents of boxes are exponentials
        decomposed_opset=OPSET,
        calibration=2,
    )
}

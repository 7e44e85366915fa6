//! Copies of many rows, between addresses and arrays (`CUDA_MEMCPY2D`, `CUDA_MEMCPY3D`).

use super::{When, any, array, known, transfer};
use crate::ffi::In;
use cuda::memory::{Array, Part, Rows, Side, Span};
use cuda::{Asked, Error};
use std::sync::Arc;

streamed! {
    fn cuMemcpy2D_v2, cuMemcpy2D_v2_ptds (shape: In<Copy2D>) in stream {
        shape.get()?.carry_out(&stream, When::Done)
    }
    fn cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds (shape: In<Copy2D>) in stream {
        shape.get()?.carry_out(&stream, When::Done)
    }
    fn cuMemcpy3D_v2, cuMemcpy3D_v2_ptds (shape: In<Copy3D>) in stream {
        shape.get()?.carry_out(&stream, When::Done)
    }
    fn cuMemcpy3DPeer, cuMemcpy3DPeer_ptds (shape: In<Copy3D>) in stream {
        shape.get()?.carry_out(&stream, When::Done)
    }
}

streamed! {
    fn cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz (shape: In<Copy2D>; stream) {
        shape.get()?.carry_out(&stream, When::Queued)
    }
    fn cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz (shape: In<Copy3D>; stream) {
        shape.get()?.carry_out(&stream, When::Queued)
    }
    fn cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz (shape: In<Copy3D>; stream) {
        shape.get()?.carry_out(&stream, When::Queued)
    }
}

/// One end of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct End2D {
    x_bytes: u64,
    y: u64,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: u64,
}

/// `CUDA_MEMCPY2D_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy2D {
    from: End2D,
    to: End2D,
    width_bytes: u64,
    height: u64,
}

/// One end of a `CUDA_MEMCPY3D_v2` or of a `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Clone, Copy)]
struct End3D {
    x_bytes: u64,
    y: u64,
    z: u64,
    lod: u64,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    /// Reserved, or the context of the memory.
    context: u64,
    pitch: u64,
    height: u64,
}

/// `CUDA_MEMCPY3D_v2`, `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy3D {
    from: End3D,
    to: End3D,
    width_bytes: u64,
    height: u64,
    depth: u64,
}

impl End2D {
    fn as_3d(self) -> End3D {
        let End2D { x_bytes, y, kind, host, device, array, pitch } = self;
        let (z, lod, context, height) = (0, 0, 0, 0);
        End3D { x_bytes, y, z, lod, kind, host, device, array, context, pitch, height }
    }
}

impl Copy2D {
    fn carry_out(self, stream: &Asked, when: When) -> cuda::Res {
        let Copy2D { from, to, width_bytes, height } = self;
        let (from, to) = (from.as_3d(), to.as_3d());
        Copy3D { from, to, width_bytes, height, depth: 1 }.carry_out(stream, when)
    }
}

/// `CU_MEMORYTYPE_*`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

impl End3D {
    /// The array that it is in.
    fn found(&self) -> cuda::Res<Option<Arc<Array>>> {
        match self.kind {
            // levels of detail
            ARRAY if self.lod != 0 => Err(Error::INVALID_VALUE),
            ARRAY => array(self.array).map(Some),
            _ => Ok(None),
        }
    }

    /// How rows lie at it. Without a pitch they follow each other.
    fn side(&self, width: u64, height: u64) -> cuda::Res<Side> {
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        let rows = if self.height == 0 { height } else { self.height };
        Ok(Side { pitch, plane: pitch.checked_mul(rows).ok_or(Error::INVALID_VALUE)? })
    }

    fn span(&self, side: Side, reach: u64) -> cuda::Res<Span> {
        let offset = || {
            let planes = self.z.checked_mul(side.plane)?;
            let rows = self.y.checked_mul(side.pitch)?;
            planes.checked_add(rows)?.checked_add(self.x_bytes)
        };
        let offset = offset().ok_or(Error::INVALID_VALUE)?;
        let at = |base: u64| base.checked_add(offset).ok_or(Error::INVALID_VALUE);
        match self.kind {
            HOST => any(at(self.host)?, reach),
            DEVICE => known(at(self.device)?, reach),
            UNIFIED => any(at(self.device)?, reach),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    fn span_in(&self, array: Arc<Array>, rows: &Rows, reach: u64) -> cuda::Res<Span> {
        let corner = [self.x_bytes, self.y, self.z];
        let part = Part { corner, extent: [rows.width, rows.height, rows.depth] };
        let offset = array.layout().offset(&part)?;
        Span::of_array(array, offset, reach)
    }
}

impl Copy3D {
    fn carry_out(self, stream: &Asked, when: When) -> cuda::Res {
        let (width, height, depth) = (self.width_bytes, self.height, self.depth);
        let arrays = (self.to.found()?, self.from.found()?);
        let side = |end: &End3D, array: &Option<Arc<Array>>| match array {
            Some(array) => Ok(array.layout().side()),
            None => end.side(width, height),
        };
        let (to, from) = (side(&self.to, &arrays.0)?, side(&self.from, &arrays.1)?);
        let rows = Rows { width, height, depth, to, from };
        if rows.is_empty() {
            return Ok(());
        }
        let span = |end: &End3D, array, side| match array {
            Some(array) => end.span_in(array, &rows, rows.reach(side)?),
            None => end.span(side, rows.reach(side)?),
        };
        let (to, from) = (span(&self.to, arrays.0, to)?, span(&self.from, arrays.1, from)?);
        transfer(stream, to, from, rows, when)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<Copy2D>(), 128);
        assert_eq!(size_of::<Copy3D>(), 200);
    }
}

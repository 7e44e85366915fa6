//! Copies: between any two addresses, in one row or in many.

use crate::ffi::In;
use cuda::Asked;
use cuda::memory::{Rows, Side, Span, copy_rows};
use cuda::{Driver, Error, Handle};

/// Whether a call returns before its copy is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Done,
    Queued,
}

fn transfer(stream: &Asked, to: Span, from: Span, rows: Rows, when: When) -> cuda::Res {
    if rows.is_empty() {
        return Ok(());
    }
    let waits = when == When::Done || to.waits() || from.waits();
    let work = move || copy_rows(&to, &from, &rows);
    if waits {
        // the program named memory that is none
        return stream.run(work).map_err(|error| match error {
            Error::ILLEGAL_ADDRESS => Error::INVALID_VALUE,
            other => other,
        });
    }
    stream.context().check()?;
    stream.queue_fallible(work);
    Ok(())
}

fn known(addr: u64, len: u64) -> cuda::Res<Span> {
    Span::known(&Driver::get()?.space, addr, len)
}

fn any(addr: u64, len: u64) -> cuda::Res<Span> {
    Span::any(&Driver::get()?.space, addr, len)
}

/// One end of a copy: what says where its bytes are, and the address.
type End = (fn(u64, u64) -> cuda::Res<Span>, u64);

/// Copies `len` bytes; of none, no address is looked at.
fn line(stream: &Asked, (to, at): End, (from, begin): End, len: u64, when: When) -> cuda::Res {
    if len == 0 {
        return Ok(());
    }
    transfer(stream, to(at, len)?, from(begin, len)?, Rows::line(len), when)
}

fn to_device(stream: &Asked, to: u64, from: u64, len: u64, when: When) -> cuda::Res {
    line(stream, (known, to), (any, from), len, when)
}

fn to_host(stream: &Asked, to: u64, from: u64, len: u64, when: When) -> cuda::Res {
    line(stream, (any, to), (known, from), len, when)
}

fn within(stream: &Asked, to: u64, from: u64, len: u64, when: When) -> cuda::Res {
    line(stream, (known, to), (known, from), len, when)
}

fn unified(stream: &Asked, to: u64, from: u64, len: u64, when: When) -> cuda::Res {
    line(stream, (any, to), (any, from), len, when)
}

streamed! {
    fn cuMemcpy, cuMemcpy_ptds (to: u64, from: u64, len: u64) in stream {
        unified(&stream, to, from, len, When::Done)
    }
    fn cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds (to: u64, from: u64, len: u64) in stream {
        to_device(&stream, to, from, len, When::Done)
    }
    fn cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds (to: u64, from: u64, len: u64) in stream {
        to_host(&stream, to, from, len, When::Done)
    }
    fn cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds (to: u64, from: u64, len: u64) in stream {
        within(&stream, to, from, len, When::Done)
    }
    fn cuMemcpyPeer, cuMemcpyPeer_ptds
        (to: u64, to_context: Handle, from: u64, from_context: Handle, len: u64) in stream {
        super::context::of(to_context)?;
        super::context::of(from_context)?;
        within(&stream, to, from, len, When::Done)
    }
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
    fn cuMemcpyAsync, cuMemcpyAsync_ptsz (to: u64, from: u64, len: u64; stream) {
        unified(&stream, to, from, len, When::Queued)
    }
    fn cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz (to: u64, from: u64, len: u64; stream) {
        to_device(&stream, to, from, len, When::Queued)
    }
    fn cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz (to: u64, from: u64, len: u64; stream) {
        to_host(&stream, to, from, len, When::Queued)
    }
    fn cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz (to: u64, from: u64, len: u64; stream) {
        within(&stream, to, from, len, When::Queued)
    }
    fn cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz
        (to: u64, to_context: Handle, from: u64, from_context: Handle, len: u64; stream) {
        super::context::of(to_context)?;
        super::context::of(from_context)?;
        within(&stream, to, from, len, When::Queued)
    }
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

impl End3D {
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
            1 => any(at(self.host)?, reach),
            2 => known(at(self.device)?, reach),
            4 => any(at(self.device)?, reach),
            // CUDA arrays
            3 => Err(Error::NOT_SUPPORTED),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

impl Copy3D {
    fn carry_out(self, stream: &Asked, when: When) -> cuda::Res {
        let (width, height, depth) = (self.width_bytes, self.height, self.depth);
        let (to, from) = (self.to.side(width, height)?, self.from.side(width, height)?);
        let rows = Rows { width, height, depth, to, from };
        if rows.is_empty() {
            return Ok(());
        }
        let to = self.to.span(to, rows.reach(to)?)?;
        let from = self.from.span(from, rows.reach(from)?)?;
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

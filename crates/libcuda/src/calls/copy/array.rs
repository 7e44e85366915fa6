//! CUDA arrays, and copies between those of one row and addresses.

use super::{When, any, array, known, transfer};
use crate::ffi::{In, Out};
use cuda::memory::{Array, Part, Rows, Shape, Span};
use cuda::{Asked, Driver, Error, Handle, living};
use std::sync::Arc;

/// `CUDA_ARRAY_DESCRIPTOR_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    width: u64,
    height: u64,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor3D {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
}

fn create(out: Out<Handle>, shape: Shape) -> cuda::Res {
    let (driver, out, context) = (Driver::get()?, out.checked()?, living()?);
    let array = Array::create(driver, &context, shape)?;
    driver.made_in(&context)?;
    out.put(array)
}

api! {
    fn cuArrayCreate_v2(out: Out<Handle>, asked: In<Descriptor>) {
        let Descriptor { width, height, format, channels } = asked.get()?;
        create(out, Shape { width, height, depth: 0, format, channels, flags: 0 })
    }

    fn cuArray3DCreate_v2(out: Out<Handle>, asked: In<Descriptor3D>) {
        let Descriptor3D { width, height, depth, format, channels, flags } = asked.get()?;
        create(out, Shape { width, height, depth, format, channels, flags })
    }

    fn cuArrayDestroy(array: Handle) {
        Array::destroy(Driver::get()?, array)
    }

    fn cuArrayGetDescriptor_v2(out: Out<Descriptor>, of: Handle) {
        let Shape { width, height, depth, format, channels, .. } = *array(of)?.layout().shape();
        // it would not say how deep the array is
        if depth != 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.put(Descriptor { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(out: Out<Descriptor3D>, of: Handle) {
        let Shape { width, height, depth, format, channels, flags } = *array(of)?.layout().shape();
        out.put(Descriptor3D { width, height, depth, format, channels, flags })
    }

    fn cuArrayGetPlane(_plane: Out<Handle>, of: Handle, _index: u32) {
        // of formats that have planes there are no arrays
        array(of)?;
        Err(Error::INVALID_VALUE)
    }

    fn cuArrayGetMemoryRequirements(_out: Out<u8>, of: Handle, _device: i32) {
        // of arrays whose memory comes later, which there are none of
        array(of)?;
        Err(Error::INVALID_VALUE)
    }

    fn cuArrayGetSparseProperties(_out: Out<u8>, of: Handle) {
        array(of)?;
        Err(Error::INVALID_VALUE)
    }
}

/// `len` bytes of an array of one row.
fn row(array: Arc<Array>, offset: u64, len: u64) -> cuda::Res<Span> {
    let layout = array.layout();
    let part = Part { corner: [offset, 0, 0], extent: [len, 1, 1] };
    let begin = layout.offset(&part)?;
    if !layout.is_line() {
        return Err(Error::INVALID_VALUE);
    }
    Span::of_array(array, begin, len)
}

/// Into an array, from what `from` says.
fn into(
    stream: &Asked,
    (to, offset): (Handle, u64),
    from: impl FnOnce(u64) -> cuda::Res<Span>,
    len: u64,
    when: When,
) -> cuda::Res {
    let to = row(array(to)?, offset, len)?;
    if len == 0 { Ok(()) } else { transfer(stream, to, from(len)?, Rows::line(len), when) }
}

/// Out of an array, to what `to` says.
fn out_of(
    stream: &Asked,
    to: impl FnOnce(u64) -> cuda::Res<Span>,
    (from, offset): (Handle, u64),
    len: u64,
    when: When,
) -> cuda::Res {
    let from = row(array(from)?, offset, len)?;
    if len == 0 { Ok(()) } else { transfer(stream, to(len)?, from, Rows::line(len), when) }
}

/// Between arrays, whose elements have the same size.
fn between(
    stream: &Asked,
    (to, to_offset): (Handle, u64),
    (from, from_offset): (Handle, u64),
    len: u64,
) -> cuda::Res {
    let (to, from) = (array(to)?, array(from)?);
    let element = to.layout().element();
    if element != from.layout().element() || !len.is_multiple_of(element) {
        return Err(Error::INVALID_VALUE);
    }
    let (to, from) = (row(to, to_offset, len)?, row(from, from_offset, len)?);
    transfer(stream, to, from, Rows::line(len), When::Done)
}

streamed! {
    fn cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds
        (to: Handle, to_offset: u64, from: Handle, from_offset: u64, len: u64) in stream {
        between(&stream, (to, to_offset), (from, from_offset), len)
    }
    fn cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds
        (to: u64, from: Handle, offset: u64, len: u64) in stream {
        out_of(&stream, |len| known(to, len), (from, offset), len, When::Done)
    }
    fn cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds
        (to: Handle, offset: u64, from: u64, len: u64) in stream {
        into(&stream, (to, offset), |len| known(from, len), len, When::Done)
    }
    fn cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds
        (to: u64, from: Handle, offset: u64, len: u64) in stream {
        out_of(&stream, |len| any(to, len), (from, offset), len, When::Done)
    }
    fn cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds
        (to: Handle, offset: u64, from: u64, len: u64) in stream {
        into(&stream, (to, offset), |len| any(from, len), len, When::Done)
    }
}

streamed! {
    fn cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz
        (to: u64, from: Handle, offset: u64, len: u64; stream) {
        out_of(&stream, |len| any(to, len), (from, offset), len, When::Queued)
    }
    fn cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz
        (to: Handle, offset: u64, from: u64, len: u64; stream) {
        into(&stream, (to, offset), |len| any(from, len), len, When::Queued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<Descriptor>(), size_of::<Descriptor3D>()), (24, 40));
    }
}

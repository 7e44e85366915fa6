//! Words of memory that streams write and wait for. The first version of each function differs from
//! the second in which flags and operations there are.

use crate::ffi::In;
use cuda::memory::{Width, Word};
use cuda::queue::{Condition, MemOp};
use cuda::{Asked, Driver, Error};

/// Which version of the functions a program called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    First,
    Second,
}

fn wait(width: Width, addr: u64, value: u64, flags: u32) -> cuda::Res<MemOp> {
    let condition = Condition::new(flags, value, width)?;
    Ok(MemOp::Wait(Word::of(&Driver::get()?.space, addr, width)?, condition))
}

fn write(version: Version, width: Width, addr: u64, value: u64, flags: u32) -> cuda::Res<MemOp> {
    // `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, which permits and does not demand
    let known = if version == Version::First { 1 } else { 0 };
    if flags & !known != 0 {
        return Err(Error::INVALID_VALUE);
    }
    Ok(MemOp::Write(Word::of(&Driver::get()?.space, addr, width)?, value))
}

/// `CUstreamBatchMemOpParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Operation {
    kind: u32,
    /// Of those that name no word.
    own_flags: u32,
    addr: u64,
    value: u64,
    flags: u32,
    reserved: [u32; 5],
}

impl Operation {
    /// What is to be done; `None` for what is so without it.
    fn checked(&self, version: Version) -> cuda::Res<Option<MemOp>> {
        let Operation { kind, own_flags, addr, value, flags, .. } = *self;
        Ok(Some(match kind {
            1 => wait(Width::Four, addr, value, flags)?,
            2 => write(version, Width::Four, addr, value, flags)?,
            4 => wait(Width::Eight, addr, value, flags)?,
            5 => write(version, Width::Eight, addr, value, flags)?,
            // FLUSH_REMOTE_WRITES: what peers wrote is in memory when their write is complete
            3 if own_flags == 0 => return Ok(None),
            // BARRIER of the system or of the GPU: each operation is complete before the next
            6 if own_flags <= 1 && version == Version::Second => return Ok(None),
            _ => return Err(Error::INVALID_VALUE),
        }))
    }
}

/// `count` has to be less.
const OPERATIONS: u32 = 256;

fn batch(
    stream: &Asked,
    version: Version,
    count: u32,
    operations: In<Operation>,
    flags: u32,
) -> cuda::Res {
    if count >= OPERATIONS || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let operations = operations.array(count as usize)?;
    let checked = operations.iter().filter_map(|one| one.checked(version).transpose());
    MemOp::queue(stream, checked.collect::<cuda::Res<_>>()?)
}

fn wait_alone(stream: &Asked, width: Width, addr: u64, value: u64, flags: u32) -> cuda::Res {
    MemOp::queue(stream, vec![wait(width, addr, value, flags)?])
}

fn write_alone(
    stream: &Asked,
    version: Version,
    (width, value): (Width, u64),
    addr: u64,
    flags: u32,
) -> cuda::Res {
    MemOp::queue(stream, vec![write(version, width, addr, value, flags)?])
}

streamed! {
    fn cuStreamWaitValue32, cuStreamWaitValue32_ptsz
        (stream; addr: u64, value: u32, flags: u32) {
        wait_alone(&stream, Width::Four, addr, value.into(), flags)
    }
    fn cuStreamWriteValue32, cuStreamWriteValue32_ptsz
        (stream; addr: u64, value: u32, flags: u32) {
        write_alone(&stream, Version::First, (Width::Four, value.into()), addr, flags)
    }
    fn cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz
        (stream; addr: u64, value: u32, flags: u32) {
        wait_alone(&stream, Width::Four, addr, value.into(), flags)
    }
    fn cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz
        (stream; addr: u64, value: u32, flags: u32) {
        write_alone(&stream, Version::Second, (Width::Four, value.into()), addr, flags)
    }
    fn cuStreamWaitValue64, cuStreamWaitValue64_ptsz
        (stream; addr: u64, value: u64, flags: u32) {
        wait_alone(&stream, Width::Eight, addr, value, flags)
    }
    fn cuStreamWriteValue64, cuStreamWriteValue64_ptsz
        (stream; addr: u64, value: u64, flags: u32) {
        write_alone(&stream, Version::First, (Width::Eight, value), addr, flags)
    }
    fn cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz
        (stream; addr: u64, value: u64, flags: u32) {
        wait_alone(&stream, Width::Eight, addr, value, flags)
    }
    fn cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz
        (stream; addr: u64, value: u64, flags: u32) {
        write_alone(&stream, Version::Second, (Width::Eight, value), addr, flags)
    }
    fn cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz
        (stream; count: u32, operations: In<Operation>, flags: u32) {
        batch(&stream, Version::First, count, operations, flags)
    }
    fn cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz
        (stream; count: u32, operations: In<Operation>, flags: u32) {
        batch(&stream, Version::Second, count, operations, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_size_of_the_header() {
        assert_eq!(size_of::<Operation>(), 48);
    }

    #[test]
    fn what_names_no_word_has_flags_of_its_own() {
        let of = |kind, own_flags, version| {
            let (addr, value, flags, reserved) = (0, 0, 7, [7; 5]);
            let one = Operation { kind, own_flags, addr, value, flags, reserved };
            one.checked(version).map(|operation| operation.is_none())
        };
        assert_eq!((of(3, 0, Version::First), of(3, 0, Version::Second)), (Ok(true), Ok(true)));
        assert_eq!((of(6, 0, Version::Second), of(6, 1, Version::Second)), (Ok(true), Ok(true)));
        for (kind, own_flags, version) in [
            (3, 1, Version::Second),
            (6, 2, Version::Second),
            (6, 0, Version::First),
            (0, 0, Version::Second),
            (7, 0, Version::Second),
        ] {
            assert_eq!(of(kind, own_flags, version), Err(Error::INVALID_VALUE), "{kind}");
        }
    }
}

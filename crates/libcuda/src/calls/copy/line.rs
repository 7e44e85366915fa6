//! Copies of one row, between addresses.

use super::{When, any, known, transfer};
use crate::calls::context;
use cuda::memory::{Rows, Span};
use cuda::{Asked, Handle};

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
        context::of(to_context)?;
        context::of(from_context)?;
        within(&stream, to, from, len, When::Done)
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
        context::of(to_context)?;
        context::of(from_context)?;
        within(&stream, to, from, len, When::Queued)
    }
}

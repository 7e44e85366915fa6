//! Fills (`cuMemset*`).

use cuda::Asked;
use cuda::memory::{Rows, Side, Span};
use cuda::{Driver, Error};

/// Rows of one value over and over.
struct Fill<'a> {
    addr: u64,
    pitch: u64,
    /// Values of a row, and rows.
    width: u64,
    height: u64,
    value: &'a [u8],
}

impl Fill<'_> {
    fn carry_out(self, stream: &Asked, waits: bool) -> cuda::Res {
        let size = self.value.len() as u64;
        let width = self.width.checked_mul(size).ok_or(Error::INVALID_VALUE)?;
        let to = Side { pitch: self.pitch, plane: 0 };
        let rows = Rows { width, height: self.height, depth: 1, to, from: to };
        if !self.addr.is_multiple_of(size) || self.height > 1 && !self.pitch.is_multiple_of(size) {
            return Err(Error::INVALID_VALUE);
        }
        if rows.is_empty() {
            return Ok(());
        }
        let span = Span::known(&Driver::get()?.space, self.addr, rows.reach(to)?)?;
        let waits = waits || span.waits();
        let value = self.value.to_vec();
        let work = move || span.fill_rows(&rows, &value);
        if waits {
            return stream.run(work);
        }
        stream.check()?;
        stream.queue_fallible(work);
        Ok(())
    }
}

fn line(stream: &Asked, addr: u64, value: &[u8], count: u64, waits: bool) -> cuda::Res {
    Fill { addr, pitch: 0, width: count, height: 1, value }.carry_out(stream, waits)
}

streamed! {
    fn cuMemsetD8_v2, cuMemsetD8_v2_ptds (addr: u64, value: u8, count: u64) in stream {
        line(&stream, addr, &[value], count, true)
    }
    fn cuMemsetD16_v2, cuMemsetD16_v2_ptds (addr: u64, value: u16, count: u64) in stream {
        line(&stream, addr, &value.to_ne_bytes(), count, true)
    }
    fn cuMemsetD32_v2, cuMemsetD32_v2_ptds (addr: u64, value: u32, count: u64) in stream {
        line(&stream, addr, &value.to_ne_bytes(), count, true)
    }
    fn cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds
        (addr: u64, pitch: u64, value: u8, width: u64, height: u64) in stream {
        Fill { addr, pitch, width, height, value: &[value] }.carry_out(&stream, true)
    }
    fn cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds
        (addr: u64, pitch: u64, value: u16, width: u64, height: u64) in stream {
        let value = &value.to_ne_bytes();
        Fill { addr, pitch, width, height, value }.carry_out(&stream, true)
    }
    fn cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds
        (addr: u64, pitch: u64, value: u32, width: u64, height: u64) in stream {
        let value = &value.to_ne_bytes();
        Fill { addr, pitch, width, height, value }.carry_out(&stream, true)
    }
}

streamed! {
    fn cuMemsetD8Async, cuMemsetD8Async_ptsz (addr: u64, value: u8, count: u64; stream) {
        line(&stream, addr, &[value], count, false)
    }
    fn cuMemsetD16Async, cuMemsetD16Async_ptsz (addr: u64, value: u16, count: u64; stream) {
        line(&stream, addr, &value.to_ne_bytes(), count, false)
    }
    fn cuMemsetD32Async, cuMemsetD32Async_ptsz (addr: u64, value: u32, count: u64; stream) {
        line(&stream, addr, &value.to_ne_bytes(), count, false)
    }
    fn cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz
        (addr: u64, pitch: u64, value: u8, width: u64, height: u64; stream) {
        Fill { addr, pitch, width, height, value: &[value] }.carry_out(&stream, false)
    }
    fn cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz
        (addr: u64, pitch: u64, value: u16, width: u64, height: u64; stream) {
        let value = &value.to_ne_bytes();
        Fill { addr, pitch, width, height, value }.carry_out(&stream, false)
    }
    fn cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz
        (addr: u64, pitch: u64, value: u32, width: u64, height: u64; stream) {
        let value = &value.to_ne_bytes();
        Fill { addr, pitch, width, height, value }.carry_out(&stream, false)
    }
}

//! Copies between any two addresses, or places in arrays, in one row or in many; and fills.

mod array;
mod fill;
mod line;
mod shape;

use cuda::memory::{Array, Rows, Span, copy_rows};
use cuda::{Asked, Driver, Error, Handle};
use std::sync::Arc;

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
        return stream.run(move || work().map_err(|_| Error::INVALID_VALUE));
    }
    stream.check()?;
    stream.queue_fallible(work);
    Ok(())
}

fn known(addr: u64, len: u64) -> cuda::Res<Span> {
    Span::known(&Driver::get()?.space, addr, len)
}

fn any(addr: u64, len: u64) -> cuda::Res<Span> {
    Span::any(&Driver::get()?.space, addr, len)
}

/// The array of a handle.
fn array(handle: Handle) -> cuda::Res<Arc<Array>> {
    Driver::get()?.arrays.get(handle)
}

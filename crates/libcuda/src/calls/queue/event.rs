//! Events.

use crate::ffi::Out;
use cuda::Asked;
use cuda::queue::Event;
use cuda::{Driver, Error, Handle, living};

fn elapsed(ms: Out<f32>, start: Handle, end: Handle) -> cuda::Res {
    let events = &Driver::get()?.events;
    let (start, end) = (events.get(start)?, events.get(end)?);
    ms.checked()?.put(end.elapsed_ms(&start)?)
}

/// What its context died of; that of one that was destroyed is over.
fn check_context(event: &Event) -> cuda::Res {
    Driver::get()?.contexts.get(event.context()).map_or(Ok(()), |context| context.check())
}

api! {
    fn cuEventCreate(event: Out<Handle>, flags: u32) {
        let (event, context) = (event.checked()?, living()?);
        let new = Event::new(context.handle(), flags)?;
        let driver = Driver::get()?;
        let handle = driver.events.add(|_| new)?.0;
        driver.made_in(&context)?;
        event.put(handle)
    }

    fn cuEventDestroy(event: Handle) {
        Driver::get()?.events.remove(event).map(drop)
    }

    fn cuEventDestroy_v2(event: Handle) {
        Driver::get()?.events.remove(event).map(drop)
    }

    fn cuEventQuery(event: Handle) {
        let event = Driver::get()?.events.get(event)?;
        check_context(&event)?;
        if event.is_reached()? { Ok(()) } else { Err(Error::NOT_READY) }
    }

    fn cuEventSynchronize(event: Handle) {
        let event = Driver::get()?.events.get(event)?;
        event.wait()?;
        check_context(&event)
    }

    fn cuEventElapsedTime(ms: Out<f32>, start: Handle, end: Handle) {
        elapsed(ms, start, end)
    }

    fn cuEventElapsedTime_v2(ms: Out<f32>, start: Handle, end: Handle) {
        elapsed(ms, start, end)
    }
}

streamed! {
    fn cuEventRecord, cuEventRecord_ptsz (event: Handle; stream) {
        record(event, &stream)
    }
}

api! {
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: u32) {
        no_more(flags, 1)?;
        record(event, &Asked::of(stream, false)?)
    }

    fn cuEventRecordWithFlags_ptsz(event: Handle, stream: Handle, flags: u32) {
        no_more(flags, 1)?;
        record(event, &Asked::of(stream, true)?)
    }
}

fn no_more(flags: u32, known: u32) -> cuda::Res {
    if flags & !known == 0 { Ok(()) } else { Err(Error::INVALID_VALUE) }
}

fn record(event: Handle, stream: &Asked) -> cuda::Res {
    stream.check()?;
    let event = Driver::get()?.events.get(event)?;
    if event.context() != stream.context().handle() {
        return Err(Error::INVALID_HANDLE);
    }
    event.record(stream)
}

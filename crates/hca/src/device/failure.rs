//! The end of a device that met a bug of ours (a panic): as a card's firmware that stops, it raises
//! `IBV_EVENT_DEVICE_FATAL`, flushes its queues and answers every later call with an error; nobody
//! waits for it.
//!
//! A panic may have left any object half changed. So a queue pair that cannot even be flushed is
//! left alone, and nothing is received or sent any more but a last NAK to those who wait for an
//! answer.

use crate::adapter::event::{AsyncEvent, EventSource};
use crate::device::Device;
use engine_thread::Uncancelled;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use transport::values::EventType;

impl Device {
    /// Ends the device because of a panic in the thread that is at it; its locks are free again.
    pub(crate) fn fail(&self, panic: &(dyn Any + Send)) {
        if !self.adapter.mark_failed() {
            return;
        }
        let _whole = Uncancelled::begin();
        let line = line(&self.attr().name, panic);
        engine_thread::say(&line);
        self.adapter.thread.kick();
        for qp in self.qps.all() {
            let _ = catch_unwind(AssertUnwindSafe(|| qp.end_with_device(&self.adapter)));
        }
        self.adapter
            .raise(AsyncEvent { event: EventType::DeviceFatal, source: EventSource::Device });
    }
}

/// What the log says of the failure, in one line.
fn line(device: &str, panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text: String = text.unwrap_or("a panic").chars().take(300).collect();
    let text = text.replace(|c: char| c.is_control(), " ");
    format!(
        "peerdma: {device} failed by a bug ({text}): its queues are flushed and its calls answer \
         EIO; please report this\n"
    )
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_failure_is_one_line() {
        let panics: [Box<dyn std::any::Any + Send>; 3] =
            [Box::new("left\n  right"), Box::new("0\x1b[2J".repeat(1000)), Box::new(7)];
        for panic in panics {
            let line = line("mlx5_0", &*panic);
            assert_eq!(line.matches(|c: char| c.is_control()).count(), 1, "{line}");
            assert!(line.ends_with('\n') && line.len() < 600, "{line}");
        }
    }
}

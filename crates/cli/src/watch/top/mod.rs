//! `peerdma top`: what the devices of this user and network namespace move, as it happens.
//!
//! `sample` reads the shared directories, `rates` is the difference of two samples, `view` shows
//! it.

mod rates;
mod sample;
mod view;

use crate::args::watch::Top;
use crate::console::failure::Outcome;
use crate::console::style;
use sample::Sample;
use std::time::Duration;

/// The command: shows rates until it is interrupted, or as often as asked.
pub fn top(arguments: &Top) -> Outcome {
    let interval = Duration::from_secs_f64(arguments.interval);
    let mut before = Sample::take()?;
    let mut shown = 0;
    while arguments.count.is_none_or(|count| shown < count) {
        // The interval is what the program is asked for; there is nothing to wait for in it.
        std::thread::sleep(interval);
        let now = Sample::take()?;
        let devices = rates::between(&before, &now);
        if arguments.json {
            style::outln(format_args!("{}", view::json(&devices, &now)));
        } else {
            view::show(&devices, &now.unread);
        }
        before = now;
        shown += 1;
    }
    Ok(0)
}

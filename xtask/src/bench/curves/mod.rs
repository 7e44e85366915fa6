//! Curves: bandwidth, latency and CPU time by the size of a message, and the rate of small messages
//! by the number of queue pairs, each beside UCX and libfabric on the same machine.
//!
//! What comes out is JSON, one point a line ([`record`]), of which `docs/pictures.sh` makes the
//! plots.

mod cpu;
mod plan;
mod publish;
mod record;
mod series;

use anyhow::Result;
use plan::Plot;
use record::{Points, Record, Stamp};
use series::Series;

pub use plan::Extent;
pub use publish::Place;

/// Measures it all, round by round, and leaves the record and its plots at `place`; true when every
/// program ran.
///
/// # Errors
/// When the record cannot be written or drawn.
pub fn measure(extent: &Extent, place: Place) -> Result<bool> {
    let mut points = Points::default();
    let mut failures = 0;
    let all = series::all();
    for round in 0..extent.rounds {
        eprintln!("round {} of {}", round + 1, extent.rounds);
        for series in &all {
            series.begin();
        }
        for bytes in &extent.sizes {
            for series in all.iter().filter(|series| series.plot != Plot::Rate) {
                failures += u32::from(!step(series, *bytes, extent, &mut points));
            }
        }
        for queue_pairs in &extent.queue_pairs {
            for series in all.iter().filter(|series| series.plot == Plot::Rate) {
                failures += u32::from(!step(series, *queue_pairs, extent, &mut points));
            }
        }
    }
    let record = Record { stamp: Stamp::now(extent.rounds), points };
    let folder = place.folder();
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("curves.json"), record.to_string())?;
    if failures > 0 {
        eprintln!("{failures} measurements failed, and are no points");
    }
    let drawn = publish::draw(&folder)?;
    if drawn && place == Place::Book {
        publish::show_on_page(&record.stamp)?;
    }
    Ok(drawn && failures == 0)
}

/// One measurement; whether it worked. One that fails is no point, and does not end the others.
fn step(series: &Series, x: u64, extent: &Extent, points: &mut Points) -> bool {
    match series.measure(x, extent) {
        Ok(figures) => {
            for (plot, figure) in figures {
                points.add(plot, &series.name, x, figure);
            }
            true
        }
        Err(error) => {
            eprintln!("{}, {x}: {error:#}", series.name);
            false
        }
    }
}

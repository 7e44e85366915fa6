//! Links paced to their rate: a transfer occupies every link of its route for as long as the real
//! one would take.
//!
//! Nobody waits here. Each direction of a link has a clock that says until when it is busy; a
//! transfer moves the clocks on, and the thread that made it asks afterwards, by [`owed`], when the
//! last of its links is free again, and holds back until then. Who holds back comes late by what
//! the scheduler takes; a pause that short is not idleness, and the link makes up for it, so that
//! it carries its rate. The clocks are those of one process: another process is another machine.

use crate::LinkId;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Which way bytes go over a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Direction {
    /// Towards the root complex.
    Up,
    /// Away from it.
    Down,
}

impl Direction {
    /// The other one.
    pub fn reverse(self) -> Direction {
        match self {
            Direction::Up => Direction::Down,
            Direction::Down => Direction::Up,
        }
    }
}

/// Longest pause of a link that still counts as the lateness of who held back.
const LATENESS_NS: u64 = 10_000_000;

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct LinkClock {
    bytes_per_second: f64,
    /// Nanoseconds after the epoch; 0 before the first bytes.
    busy_until_ns: AtomicU64,
}

impl LinkClock {
    fn new(bytes_per_second: f64) -> LinkClock {
        LinkClock { bytes_per_second, busy_until_ns: AtomicU64::new(0) }
    }

    /// Occupies the link for `bytes`, from when it is free, or from `now_ns` where it has been
    /// idle. Until when.
    fn occupy(&self, now_ns: u64, bytes: u64) -> u64 {
        let takes_ns = (bytes as f64 * 1e9 / self.bytes_per_second) as u64;
        let until = |busy: u64| {
            let idle = busy == 0 || now_ns.saturating_sub(busy) > LATENESS_NS;
            (if idle { now_ns } else { busy }).saturating_add(takes_ns)
        };
        let before = self.busy_until_ns.fetch_update(Relaxed, Relaxed, |busy| Some(until(busy)));
        until(before.unwrap_or_else(|busy| busy))
    }
}

/// The clocks of a platform's links.
#[derive(Debug)]
pub(crate) struct Pacer {
    fraction: f64,
    clocks: HashMap<(LinkId, Direction), Arc<LinkClock>>,
}

impl Pacer {
    /// Links run at this fraction of their rate.
    pub fn new(fraction: f64) -> Pacer {
        Pacer { fraction, clocks: HashMap::new() }
    }

    /// The clock of a link that carries `bytes_per_second`.
    pub fn clock(&mut self, link: LinkId, way: Direction, bytes_per_second: u64) -> Arc<LinkClock> {
        let rate = bytes_per_second as f64 * self.fraction;
        self.clocks.entry((link, way)).or_insert_with(|| Arc::new(LinkClock::new(rate))).clone()
    }
}

/// The clocks of a route, for bytes read from its target and for bytes written to it. None of links
/// whose rate is not known.
#[derive(Debug, Default)]
pub(crate) struct RouteClocks {
    pub read: Box<[Arc<LinkClock>]>,
    pub written: Box<[Arc<LinkClock>]>,
}

impl RouteClocks {
    pub fn occupy_read(&self, bytes: u64) {
        occupy(&self.read, bytes);
    }

    pub fn occupy_written(&self, bytes: u64) {
        occupy(&self.written, bytes);
    }
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

thread_local! {
    /// Until when, in nanoseconds after the epoch, the links are busy with what this thread moved;
    /// 0 for nothing.
    static OWED_NS: Cell<u64> = const { Cell::new(0) };
}

#[inline]
fn occupy(clocks: &[Arc<LinkClock>], bytes: u64) {
    if !clocks.is_empty() {
        let now_ns = epoch().elapsed().as_nanos() as u64;
        let until = clocks.iter().map(|clock| clock.occupy(now_ns, bytes)).max();
        OWED_NS.set(OWED_NS.get().max(until.unwrap_or_default()));
    }
}

/// When the links are free of all that this thread moved since it last asked; nothing where no link
/// is paced.
#[inline]
pub fn owed() -> Option<Instant> {
    match OWED_NS.replace(0) {
        0 => None,
        owed_ns => Some(epoch() + Duration::from_nanos(owed_ns)),
    }
}

/// Whether the links will be busy for longer than `burst` after `now` with what this thread moved
/// since it last asked when they are free.
#[inline]
pub fn owes_more(now: Instant, burst: Duration) -> bool {
    match OWED_NS.get() {
        0 => false,
        owed_ns => epoch() + Duration::from_nanos(owed_ns) > now + burst,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Platform, Target};
    use std::path::Path;

    #[test]
    fn a_link_is_busy_for_as_long_as_its_bytes_take() {
        let clock = LinkClock::new(1e9);
        let start = 100;
        assert_eq!(clock.occupy(start, 50), start + 50);
        assert_eq!(clock.occupy(start + 20, 50), start + 100, "after what is on the way");
        let late = start + 100 + LATENESS_NS;
        assert_eq!(clock.occupy(late, 50), start + 150, "who comes late is not idle");
        assert_eq!(clock.occupy(late + 51, 1), late + 52, "idle time is not saved up");
    }

    #[test]
    fn directions_have_clocks_of_their_own_and_routes_share_links() {
        let platform = Platform::load(Path::new("server")).unwrap();
        platform.pace(0.5);
        let hca = platform.named("peerdma0").unwrap();
        let gpu = Target::Function(platform.named("gpu0").unwrap().address);
        let (gpu, host) =
            (platform.route(hca, gpu).unwrap(), platform.route(hca, Target::HOST).unwrap());
        assert_eq!(owed(), None);
        // 63 GB a second at half the rate: a GB takes 32 ms.
        let start = Instant::now();
        gpu.count_written(1_000_000_000);
        assert!(owes_more(start, Duration::from_millis(30)));
        assert!(!owes_more(start, Duration::from_secs(30)));
        let first = owed().unwrap() - start;
        assert!(!owes_more(start, Duration::ZERO));
        assert!(first >= Duration::from_millis(31), "{first:?}");
        gpu.count_read(1);
        assert!(owed().unwrap() - start < first, "the other direction is free");
        host.count_written(1_000_000_000);
        let second = owed().unwrap() - start;
        assert!(
            second >= first + Duration::from_millis(31),
            "the HCA's own link is shared: {second:?}"
        );
        assert_eq!(owed(), None);
    }

    #[test]
    fn a_port_that_is_crossed_up_and_down_carries_each_way_once() {
        let text = include_str!("platforms/server.toml");
        let platform = Platform::from_toml(text).unwrap();
        platform.pace(1.0);
        let hca = platform.named("peerdma1").unwrap();
        let gpu = Target::Function(platform.named("gpu1").unwrap().address);
        let route = platform.route(hca, gpu).unwrap();
        let start = Instant::now();
        route.count_written(1_000_000_000);
        let takes = owed().unwrap() - start;
        assert!(takes < Duration::from_millis(25), "63 GB a second, not half of it: {takes:?}");
    }

    #[test]
    fn nothing_is_owed_where_nothing_is_paced() {
        let platform = Platform::default();
        let hca = platform.named("peerdma0").unwrap();
        platform.route(hca, Target::HOST).unwrap().count_read(1 << 40);
        assert_eq!(owed(), None);
    }
}

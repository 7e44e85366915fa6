//! Many senders onto one link: it stays in use, and each gets its part of it.

use crate::support::{Link, Load, Poster, Star};
use std::time::Duration;
use transport::Counter;

const FLOWS: usize = 16;
/// Messages over all flows; the first half is left out while rates settle.
const MESSAGES: u64 = 2400;

/// What came of many flows in the second half of a run.
struct Shares {
    /// Share of the link's rate that messages took.
    used: f64,
    /// What the flow got that got most, to what that got that got least.
    spread: f64,
}

fn shares(link: Link, poster: Poster) -> (Star, Shares) {
    let load = Load { poster, message: 64 << 10, depth: 16 };
    let mut star = Star::new(FLOWS, link, load, 4 << 20, 0);
    let sum = |star: &Star| star.done().iter().sum::<u64>();
    star.run_until(Duration::from_secs(60), |star| sum(star) >= MESSAGES / 2);
    let (before, begun) = (star.done(), star.elapsed());
    star.run_until(Duration::from_secs(60), |star| sum(star) >= MESSAGES);
    let got: Vec<u64> = star.done().iter().zip(&before).map(|(now, before)| now - before).collect();
    let bytes = got.iter().sum::<u64>() * u64::from(load.message);
    let seconds = (star.elapsed() - begun).as_secs_f64();
    let (most, least) = (got.iter().max(), got.iter().min());
    let shares = Shares {
        used: bytes as f64 / seconds / link.rate as f64,
        spread: most.map_or(0.0, |most| *most as f64) / least.map_or(0.0, |least| *least as f64),
    };
    let Shares { used, spread } = shares;
    println!("{poster:?}, {link:?}: used {used:.2}, spread {spread:.2}, {got:?}");
    (star, shares)
}

#[test]
fn marks_make_flows_share_a_link() {
    let slow = Link { rate: 200_000_000, delay: Duration::from_micros(50), ..Link::default() };
    for poster in [Poster::Leaves, Poster::Hub] {
        for link in [Link::default(), slow] {
            let link = Link { marks_above: Some(64 << 10), ..link };
            let (star, Shares { used, spread }) = shares(link, poster);
            assert!(used >= 0.6 && spread <= 2.0, "{used:.2}, {spread:.2}");
            let counted = |what| star.counted(what);
            assert!(counted(Counter::EcnMarkedPackets) > 100);
            let sent = counted(Counter::CnpSent);
            assert!((sent / 2..=sent).contains(&counted(Counter::CnpHandled)));
            assert_eq!(counted(Counter::CnpIgnored), 0);
        }
    }
}

#[test]
fn a_link_that_only_drops_stays_in_use() {
    for poster in [Poster::Leaves, Poster::Hub] {
        let (star, Shares { used, .. }) = shares(Link::default(), poster);
        assert!(used >= 0.5 && star.dropped > 100, "{used:.2}");
    }
}

//! What loss costs: a link that loses one packet in a hundred carries a good share of what it
//! carries without loss.

use crate::support::{Link, Load, Poster, Star};
use std::time::Duration;
use transport::Counter;

/// Messages of each run.
const MESSAGES: u64 = 24;

/// A run in which so many packets in a thousand are lost.
fn run(link: Link, load: Load, seed: u64) -> Star {
    let mut star = Star::new(1, link, load, 4 << 20, seed);
    star.run_until(Duration::from_secs(60), |star| star.done()[0] >= MESSAGES);
    star
}

#[test]
fn one_packet_lost_in_a_hundred_leaves_a_third_of_the_rate() {
    for (poster, tells) in
        [(Poster::Leaves, Counter::PacketSeqErr), (Poster::Hub, Counter::ImpliedNakSeqErr)]
    {
        for rate in [1_000_000_000, 4_000_000_000] {
            let load = Load { poster, message: 1 << 20, depth: 8 };
            let clean = Link { rate, capacity: 8 << 20, ..Link::default() };
            let lossless = run(clean, load, 0).elapsed();
            for seed in 1..=3 {
                let star = run(Link { loss: 10, ..clean }, load, seed);
                let share = lossless.as_secs_f64() / star.elapsed().as_secs_f64();
                println!("{poster:?}, {rate} B/s, seed {seed}: {share:.2}");
                assert!(star.dropped > 50 && share >= 0.3, "{} lost: {share:.2}", star.dropped);
                assert!(star.counted(tells) > 10);
                assert_eq!(star.counted(Counter::LocalAckTimeoutErr), 0, "a NAK suffices");
            }
        }
    }
}

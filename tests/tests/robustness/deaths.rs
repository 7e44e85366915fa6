//! Death at any instant: one of two processes of a host ends at a point of what they share, and the
//! other outlives it. `cargo xtask soak` does it a thousand times; `PEERDMA_SOAK_SEED` repeats one.

use hca::sabotage::Point;
use std::sync::Mutex;
use system::{Namespace, Run, c_program, is_root, library_with_defects, peerdma, rows, skip};

/// Seeds of each point and role in the suite, and of all in a long run.
const FEW: u64 = 2;
const MANY: u64 = 1000;
/// A point is passed so often before it is the last time, at most. Rings come to be once.
const MOST_TIMES: u64 = 40;
/// Deaths at a time.
const WORKERS: usize = 2;
/// What the program judges.
const ROWS: u32 = 9;
/// Who comes by the point: the one that ends, or the one that is left.
const ROLES: [&str; 2] = ["own", "other"];

/// What ends where, and after how often.
struct Death {
    seed: u64,
    point: &'static str,
    role: &'static str,
    nth: u64,
}

impl Death {
    /// That of a seed: points and roles take turns.
    fn of(seed: u64) -> Death {
        let (points, roles) = (Point::ALL.len() as u64, ROLES.len() as u64);
        let (point, name) = Point::ALL[(seed % points) as usize];
        let once = matches!(point, Point::Announcing | Point::Attaching);
        // SplitMix64's last steps: near seeds give numbers that are not.
        let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Death {
            seed,
            point: name,
            role: ROLES[(seed / points % roles) as usize],
            nth: if once { 1 } else { 1 + (mixed ^ mixed >> 31) % MOST_TIMES },
        }
    }

    /// What the survivor says of it.
    fn is_outlived(&self, program: &str, library: &str, own: &Namespace) {
        let Death { seed, point, role, nth } = self;
        let (at, length) = (hca::fuzzed::PARTS[6], hca::fuzzed::PASSES_LEN);
        println!("seed {seed}: {role} {point} {nth}");
        let run = Run::program(peerdma()).args(&["run", "--library", library, "--", program]);
        let run = run.args(&[role, point, &nth.to_string(), &at.to_string(), &length.to_string()]);
        let ended = run.within(own).finish();
        let all_right = ended.succeeded() && rows(&ended) == ROWS && !ended.stdout.contains("NOT ");
        assert!(all_right, "PEERDMA_SOAK_SEED={seed}, {role} {point} {nth}: {ended}");
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn deaths() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let Some(library) = library_with_defects() else {
        skip!("no library with defects was built; `cargo xtask test` does");
    };
    let program = match c_program("deaths") {
        Ok(program) => program.display().to_string(),
        Err(reason) => skip!("{reason}"),
    };
    let library = library.to_str().expect("a path");
    let all = (Point::ALL.len() * ROLES.len()) as u64;
    let is_long = setting("PEERDMA_SOAK_SECONDS").is_some();
    let (first, count) = match setting("PEERDMA_SOAK_SEED") {
        Some(seed) if !is_long => (seed, 1),
        seed => (seed.unwrap_or(0), if is_long { MANY } else { FEW * all }),
    };
    // Half of the time goes by in waiting. No more: both ends spin while they wait for each other,
    // and are to be where the point is.
    let seeds = Mutex::new(first..first + count);
    let next = || seeds.lock().expect("no worker panics with it").next();
    let worker = || {
        let own = Namespace::new("deaths");
        while let Some(seed) = next() {
            Death::of(seed).is_outlived(&program, library, &own);
        }
    };
    std::thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(worker))));
}

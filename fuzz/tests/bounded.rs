//! Runs every target over random and mutated inputs for a bounded number of times, on any machine.
//!
//! `PEERDMA_FUZZ_ITERATIONS` (default 200,000 for each target) and `PEERDMA_FUZZ_SEED` (default 1,
//! so that a run can be repeated) change the run. A failure names target, seed and iteration, and
//! prints the input in hexadecimal.

use peerdma_fuzz::{TARGETS, Target};
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// SplitMix64: a whole run follows from one number.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Byte values at which parsers go wrong.
const EDGES: [u8; 8] = [0, 1, 0x0f, 0x10, 0x7f, 0x80, 0xfe, 0xff];

/// A fresh input, mostly a seed with a few changes.
fn input(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    if seeds.is_empty() || random.below(8) == 0 {
        let len = random.below(200);
        return (0..len).map(|_| random.next() as u8).collect();
    }
    let mut data = seeds[random.below(seeds.len())].clone();
    for _ in 0..random.below(6) {
        let at = random.below(data.len() + 1);
        let byte = random.next() as u8;
        match random.below(6) {
            0 => data.truncate(at),
            1 => data.insert(at, byte),
            2 => data.extend(std::iter::repeat_n(byte, random.below(64))),
            kind => {
                let Some(target) = data.get_mut(at) else { continue };
                *target = match kind {
                    3 => *target ^ 1 << (byte & 7),
                    4 => EDGES[random.below(EDGES.len())],
                    _ => byte,
                };
            }
        }
    }
    data
}

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// What runs guided by coverage have kept: `corpus/TARGET`, where libFuzzer looks too.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = files.map(|file| file.expect("a file of the corpus").path()).collect();
    // A seed repeats a run only where the order is always the same.
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file of the corpus")).collect()
}

fn run(target: &Target, seed: u64, iterations: u64) {
    let mut seeds = (target.seeds)();
    seeds.extend(corpus(target));
    for data in &seeds {
        (target.run)(data);
    }
    let mut random = Random(seed);
    for iteration in 0..iterations {
        let data = input(&mut random, &seeds);
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&data))).is_err() {
            let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
            panic!("{}: seed {seed}, iteration {iteration}, input {hex}", target.name);
        }
    }
    println!("{}: seed {seed}, {iterations} iterations, {} seeds", target.name, seeds.len());
}

#[test]
fn every_target_keeps_its_promises() {
    let seed = from_environment("PEERDMA_FUZZ_SEED", 1);
    let iterations = from_environment("PEERDMA_FUZZ_ITERATIONS", 200_000);
    assert!(!TARGETS.is_empty() && iterations > 0, "nothing would be tested");
    for target in TARGETS {
        run(target, seed, iterations);
    }
}

/// Every target has its coverage-guided program, and every program its target.
#[test]
fn targets_and_programs_agree() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz_targets");
    let mut programs: Vec<OsString> = std::fs::read_dir(folder)
        .expect("the folder is part of the source")
        .map(|entry| entry.expect("readable").path().file_stem().unwrap().to_owned())
        .collect();
    programs.sort();
    let mut names: Vec<OsString> = TARGETS.iter().map(|target| target.name.into()).collect();
    names.sort();
    assert_eq!(programs, names);
}

//! Speed of the guarded copies next to the C library's memcpy: `cargo run --release -p mm --example
//! guard_speed`.

use std::hint::black_box;
use std::time::Instant;

/// Best of five runs, in GB/s.
fn rate(len: usize, mut copy: impl FnMut()) -> f64 {
    let turns = (512 << 20) / len.max(512);
    (0..5)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..turns {
                copy();
            }
            (turns * len) as f64 / start.elapsed().as_nanos() as f64
        })
        .fold(0.0, f64::max)
}

fn main() {
    mm::guard::install();
    println!("{:>9} {:>10} {:>10} {:>10}   GB/s", "bytes", "write", "read", "memcpy");
    for len in [8, 64, 256, 1024, 2048, 4096, 16384, 65536, 1 << 20, 16 << 20] {
        let src = vec![1u8; len + 64];
        let mut dst = vec![0u8; len + 64];
        let shift =
            std::env::args().nth(1).map_or(0, |s| s.parse().expect("a byte offset below 64"));
        let map = mm::Mapping::anonymous(len as u64 + 64).expect("memory");
        map.sink().fill(0).expect("mapped");
        let to = rate(len, || {
            black_box(map.sink()).write(black_box(&src[shift..][..len])).expect("mapped")
        });
        let from = rate(len, || {
            let from = mm::Source::from(black_box(&src[..]));
            from.read(black_box(&mut dst[shift..][..len])).expect("mapped")
        });
        let plain = rate(len, || {
            black_box(&mut dst[..len]).copy_from_slice(black_box(&src[shift..][..len]))
        });
        println!("{len:>9} {to:>10.1} {from:>10.1} {plain:>10.1}");
    }
}

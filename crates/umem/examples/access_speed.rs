//! What a registration costs on the data path and to set up: `cargo run --release -p umem --example
//! access_speed`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use umem::{AccessFlags, Umem};

/// Best of five runs, in ns a turn.
fn ns(turns: u32, mut body: impl FnMut()) -> f64 {
    (0..5)
        .map(|_| {
            let start = Instant::now();
            (0..turns).for_each(|_| body());
            start.elapsed().as_nanos() as f64 / f64::from(turns)
        })
        .fold(f64::MAX, f64::min)
}

struct Ignored;

impl umem::LookupWatcher for Ignored {
    fn looked_up(&self, _what: umem::Lookup) {}
}

/// Writes of a packet, one after the other, over memory that fits the translation cache and memory
/// that does not.
fn on_demand(
    space: &Arc<mm::AddressSpace>,
    memory: mm::Sink<'static>,
    hca: &pcie::Function,
    platform: &pcie::Platform,
) {
    let local = [7u8; 4096];
    for len in [4 << 20, 256 << 20u64] {
        let memory = memory.part(0, len).expect("as large");
        let register = || {
            let pages = Arc::new(mm::ProcessPages::default());
            let access = AccessFlags::LOCAL_WRITE;
            Umem::on_demand(space, pages, memory, memory.addr(), access, hca, platform)
                .expect("a small range")
        };
        let pinned = Umem::from_user(space, memory, AccessFlags::LOCAL_WRITE, hca, platform)
            .expect("mapped memory");
        let cached = register();
        cached.translate_by(&umem::TranslationCache::new(Box::new(Ignored)).expect("memory"));
        let time = |umem: &Umem| {
            let mut at = 0;
            ns(1_000_000, || {
                at = (at + 4096) % len;
                umem.write(at, &local, 0).expect("registered");
            })
        };
        let [pinned, asked, cached] = [&pinned, &register(), &cached].map(|umem| time(umem));
        println!(
            "4096 B throughout {len} B: pinned {pinned:.1} ns, on demand {asked:.1} ns, with \
             translations cached {cached:.1} ns"
        );
    }
}

fn main() {
    let platform = pcie::Platform::default();
    let hca = platform.named("peerdma0").expect("the default platform's HCA");
    let space = mm::AddressSpace::process();
    let memory = mm::Mapping::anonymous(1 << 30).expect("memory");
    let memory = Box::leak(Box::new(memory)).sink();
    memory.fill(1).expect("memory");
    let addr = memory.addr();
    let part = |offset, len| memory.part(offset, len).expect("inside");
    let register = |len| {
        Umem::from_user(&space, part(0, len), AccessFlags::LOCAL_WRITE, hca, &platform)
            .expect("mapped memory")
    };
    let umem: Arc<Umem> = register(1 << 20);
    let local = [7u8; 4096];
    for len in [8, 64, 1024, 4096] {
        let plain = ns(2_000_000, || black_box(memory).write(&local[..len]).expect("mapped"));
        let entered = ns(2_000_000, || {
            umem.enter().and_then(|a| a.write(black_box(0), &local[..len])).expect("registered");
        });
        println!("{len:>5} B: guarded copy {plain:.1} ns, enter + write + leave {entered:.1} ns");
    }
    on_demand(&space, memory, hca, &platform);
    println!("invalidate elsewhere: {:.1} ns", ns(2_000_000, || mm::invalidate(black_box(8..16))));
    for len in [4096, 1 << 20, 1 << 30] {
        let turns = if len > 1 << 20 { 3 } else { 1000 };
        println!(
            "register and deregister {len} resident bytes: {:.0} ns",
            ns(turns, || drop(register(len)))
        );
    }
    let many: Vec<_> = (0..100_000)
        .map(|i| {
            (
                i,
                Umem::from_user(
                    &space,
                    part(i * 8192, 8),
                    AccessFlags::LOCAL_WRITE,
                    hca,
                    &platform,
                ),
            )
        })
        .collect();
    println!(
        "the same of 4096 with {} others: {:.0} ns",
        many.len(),
        ns(1000, || drop(register(4096)))
    );
    println!(
        "invalidate between 100000: {:.0} ns",
        ns(100_000, || mm::invalidate(black_box(addr + 4096..addr + 8192)))
    );
}

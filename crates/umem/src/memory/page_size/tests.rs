use super::*;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const G: u64 = 1 << 30;

/// Bytes in one piece.
fn piece(addr: u64, len: u64) -> Run {
    Run { addr, len, block: None }
}

/// Bytes that are in one piece within blocks only.
fn blocks(addr: u64, len: u64, block: u64) -> Run {
    Run { addr, len, block: Some(block) }
}

#[test]
fn the_best_page_size_of_a_table() {
    let cases: &[(&str, u64, &[Run], Option<u64>)] = &[
        ("no entry", 0, &[], None),
        ("length 0", 4 * K + 8, &[piece(4 * K + 8, 0)], None),
        ("one page", 0x7000, &[piece(0x3000, 4 * K)], Some(4 * K)),
        ("the smallest page that holds it all", 0, &[piece(0, 20 * K)], Some(32 * K)),
        ("the last byte begins another page", 0, &[piece(0, 32 * K + 1)], Some(64 * K)),
        ("not over a boundary: one page", 28 * K, &[piece(28 * K, 4 * K)], Some(4 * K)),
        ("over a boundary: a page that holds both", 28 * K, &[piece(28 * K, 8 * K)], Some(64 * K)),
        ("iova and address differ in bit 16", 0x1_0000, &[piece(0, M)], Some(64 * K)),
        ("iova and address differ in bit 12", 0x1000, &[piece(0, M)], Some(4 * K)),
        ("iova and address differ inside a page", 8, &[piece(0, M)], None),
        ("unaligned, alike", 0x1008, &[piece(0x20_1008, 64 * K)], Some(128 * K)),
        ("huge pages", 0, &[blocks(6 * M, 64 * M, 2 * M)], Some(2 * M)),
        (
            "huge pages at an iova of another offset",
            4 * K,
            &[blocks(6 * M, 64 * M, 2 * M)],
            Some(4 * K),
        ),
        ("within one huge page", 64 * K, &[blocks(6 * M + 64 * K, 8 * K, 2 * M)], Some(8 * K)),
        ("4 KiB pages", 0, &[blocks(0, G, 4 * K)], Some(4 * K)),
        (
            "4 KiB pages that are listed",
            0,
            &[piece(0x9000, 4 * K), piece(0x3000, 4 * K)],
            Some(4 * K),
        ),
        ("entries that follow each other", 0, &[piece(0, M), piece(M, M)], Some(2 * M)),
        (
            "first and last block ragged",
            60 * K,
            &[piece(124 * K, 4 * K), piece(256 * K, 64 * K), piece(640 * K, 20 * K)],
            Some(64 * K),
        ),
        (
            "ragged inside",
            60 * K,
            &[piece(124 * K, 4 * K), piece(256 * K, 20 * K), piece(640 * K, 64 * K)],
            Some(4 * K),
        ),
        (
            "an entry begins inside a page",
            0,
            &[piece(0, 6 * K), piece(64 * K + 2 * K, 4 * K)],
            None,
        ),
        ("the largest of the adapter's", 0, &[piece(0, 16 * G)], Some(2 * G)),
        (
            "up to the last address",
            0u64.wrapping_sub(M),
            &[piece(0u64.wrapping_sub(M), M)],
            Some(M),
        ),
    ];
    for (what, iova, runs, expected) in cases {
        assert_eq!(best(PageSizes::CONNECTX, *iova, runs.iter().copied()), *expected, "{what}");
    }
}

#[test]
fn only_sizes_that_are_offered() {
    let two = PageSizes((4 * K) | (2 * M));
    let of = |sizes, iova, run: Run| best(sizes, iova, [run].into_iter());
    assert_eq!(of(two, 0, piece(0, 64 * K)), Some(2 * M), "the next that holds it all");
    assert_eq!(of(two, 0, blocks(0, 64 * K, 64 * K)), Some(4 * K), "beyond the block is unknown");
    assert_eq!(of(two, 64 * K, piece(0, 64 * K)), Some(4 * K));
    assert_eq!(of(PageSizes(2 * M), 64 * K, piece(0, 64 * K)), None, "smaller ones are not there");
    let ksm = PageSizes::CONNECTX.starting_at(64 * K);
    assert_eq!(of(ksm, 64 * K, piece(64 * K, M)), Some(64 * K));
    assert_eq!(PageSizes::CONNECTX.starting_at(0), PageSizes::CONNECTX);
}

/// Every choice holds what it promises, and the next larger size does not.
#[test]
fn no_larger_size_would_do() {
    let fits = |iova: u64, runs: &[Run], size: u64| {
        let (mut va, mut end) = (iova, None);
        runs.iter().all(|run| {
            let begins = end != Some(run.addr);
            let good = !begins
                || (run.addr ^ va).is_multiple_of(size)
                    && (end.is_none() || va.is_multiple_of(size));
            va += run.len;
            end = Some(run.addr + run.len);
            good
        })
    };
    let holds = |iova: u64, len: u64, size: u64| iova / size == (iova + len - 1) / size;
    for number in 0..4096u64 {
        let digit = |at: u32| number >> (2 * at) & 3;
        let iova = digit(0) << (12 + digit(1));
        let runs = [
            piece(digit(2) << 14, (4 * K) << digit(3)),
            piece(M + (digit(4) << 13), (4 * K) << digit(5)),
        ];
        let len = runs[0].len + runs[1].len;
        let size = best(PageSizes::CONNECTX, iova, runs.iter().copied()).unwrap();
        assert!(fits(iova, &runs, size), "{iova:#x} {runs:?}: {size:#x}");
        assert!(
            !fits(iova, &runs, 2 * size) || holds(iova, len, size),
            "{iova:#x} {runs:?}: {size:#x} is not the largest"
        );
    }
}

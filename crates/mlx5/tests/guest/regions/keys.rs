//! Keys that requests fill, change and invalidate.

use crate::driver::{Pair, pair};
use crate::support::field;
use crate::support::numbers::{
    CHECK_NOT_FREE, LOCAL_PROTECTION, REMOTE_ACCESS, REQUEST, REQUEST_ERROR, RESPONSE_SEND, SEND,
    UMR, WRITE,
};
use crate::support::verbs::{
    ALLOC_PD, CREATE_MKEY, context, create_key, crossing, data, free, free_key, inline, key_over,
    mask, remote, repeated, umr, umr_signing,
};

const SEND_INVALIDATE: u8 = 0x01;
const RESPONSE_SEND_INVALIDATE: u8 = 4;
const MW_BIND: u8 = 0x06;

/// Entries of pages that are there.
fn pages(pages: &[u64]) -> Vec<u8> {
    pages.iter().flat_map(|page| (page | 3).to_be_bytes()).collect()
}

#[test]
fn a_key_is_filled_used_and_invalidated() {
    let Pair { mut driver, mut cq, pd, mut one, .. } = pair("fastreg");
    let key = free_key(&mut driver, 1, pd);
    let (low, high) = (driver.page(), driver.page());
    let filled = context(1, pd, 0x42, 0x8000_0800, 0x1000);
    let list = pages(&[high, low]);
    one.post(&driver, UMR, key, &[&umr(CHECK_NOT_FREE, mask::ALL, &filled, &list)]);
    cq.expect(&driver, REQUEST);
    let key = key | 0x42;
    one.post(&driver, WRITE, 0, &[&remote(0x8000_0ffc, key), &inline(b"registered")]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(high + 0xffc, 4), b"regi");
    assert_eq!(driver.peek(low, 6), b"stered");
    let none = free(context(1, pd, 0, 0, 0));
    one.post(&driver, UMR, key, &[&umr(0, mask::FREE, &none, &[])]);
    cq.expect(&driver, REQUEST);
    one.post(&driver, WRITE, 0, &[&remote(0x8000_0ffc, key), &inline(b"gone")]);
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], REMOTE_ACCESS);
    assert_eq!(driver.peek(high + 0xffc, 4), b"regi");
}

#[test]
fn what_is_in_use_is_not_filled_again() {
    let Pair { mut driver, mut cq, pd, mut one, .. } = pair("inuse");
    let key = free_key(&mut driver, 1, pd);
    let page = driver.page();
    let filled = context(1, pd, 1, 0, 0x1000);
    let request = umr(CHECK_NOT_FREE, mask::ALL, &filled, &pages(&[page, 0]));
    one.post(&driver, UMR, key, &[&request]);
    cq.expect(&driver, REQUEST);
    one.post(&driver, UMR, key, &[&request]);
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], MW_BIND);
}

#[test]
fn a_window_shows_a_part_of_a_region_and_its_user_may_end_it() {
    let Pair { mut driver, mut cq, pd, key, mut one, mut two, .. } = pair("window");
    let window = free_key(&mut driver, 2, pd);
    let page = driver.page();
    let mut shown = context(2, pd, 9, 0x100, 16);
    // Peers may invalidate it.
    shown[12] |= 1;
    let list = [data(key, page + 8, 16), vec![0; 48]].concat();
    let bind = umr(CHECK_NOT_FREE, mask::ALL | 1 << 8, &shown, &list);
    two.post(&driver, UMR, window, &[&bind]);
    cq.expect(&driver, REQUEST);
    let window = window | 9;
    one.post(&driver, WRITE, 0, &[&remote(0x104, window), &inline(b"in")]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(page + 12, 2), b"in");
    two.post_receive(&driver, key, page + 64, 16);
    one.post(&driver, SEND_INVALIDATE, window, &[&inline(b"end")]);
    let mut seen = [(); 2].map(|()| driver.poll("completions", || cq.poll(&driver)));
    seen.sort_by_key(|entry| entry[63]);
    assert_eq!(seen.map(|entry| entry[63] >> 4), [REQUEST, RESPONSE_SEND_INVALIDATE]);
    one.post(&driver, WRITE, 0, &[&remote(0x104, window), &inline(b"no")]);
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], REMOTE_ACCESS);
    assert_eq!(driver.peek(page + 12, 2), b"in");
}

#[test]
fn parts_of_one_length_are_laid_out_and_taken_away() {
    let Pair { mut driver, mut cq, pd, key, mut one, .. } = pair("even");
    let even = free_key(&mut driver, 3, pd);
    let (low, high) = (driver.page(), driver.page());
    // The length in an entry does not count.
    let list = [data(key, high, 0), data(key, low, 1)].concat();
    let filled = context(3, pd, 3, 0x1_0000, 0x2000);
    one.post(&driver, UMR, even, &[&umr(CHECK_NOT_FREE, mask::ALL, &filled, &list)]);
    cq.expect(&driver, REQUEST);
    let even = even | 3;
    one.post(&driver, WRITE, 0, &[&remote(0x1_0ffd, even), &inline(b"across")]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(high + 0xffd, 3), b"acr");
    assert_eq!(driver.peek(low, 3), b"oss");
    // The second part goes; the first stays.
    let mut request = umr(2 << 5 | 1 << 4, 0, &[0; 64], &data(0, 0, 0));
    request[6..8].copy_from_slice(&1u16.to_be_bytes());
    one.post(&driver, UMR, even, &[&request]);
    cq.expect(&driver, REQUEST);
    one.post(&driver, WRITE, 0, &[&remote(0x1_0000, even), &inline(b"first")]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(high, 5), b"first");
    one.post(&driver, WRITE, 0, &[&remote(0x1_1000, even), &inline(b"gone")]);
    cq.expect(&driver, REQUEST_ERROR);
    assert_eq!(driver.peek(low, 4), b"oss\0");
}

#[test]
fn a_crossing_key_reaches_a_key_of_another_domain() {
    let Pair { mut driver, mut cq, pd, key, mut one, mut two, .. } = pair("crossing");
    let other = driver.create(ALLOC_PD, vec![0; 16]);
    let page = driver.page();
    let list = [page.to_be_bytes(), [0; 8]].concat();
    let target = create_key(&context(1, other, 0, 0x5000, 0x1000), &list);
    let target = driver.create(CREATE_MKEY, target) << 8;
    let crossed = driver.create(CREATE_MKEY, create_key(&crossing(pd, target, 0x6000), &[])) << 8;
    one.post(&driver, WRITE, 0, &[&remote(0x5010, crossed), &inline(b"crossed")]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(page + 0x10, 7), b"crossed");
    two.post_receive(&driver, crossed, 0x5040, 16);
    one.post(&driver, SEND, 0, &[&data(key, page + 0x10, 7)]);
    for _ in 0..2 {
        let entry = driver.poll("completions", || cq.poll(&driver));
        assert!(matches!(entry[63] >> 4, REQUEST | RESPONSE_SEND));
    }
    assert_eq!(driver.peek(page + 0x40, 7), b"crossed");
    // Of another device there is none.
    let mut foreign = crossing(pd, target, 0x6000);
    foreign[0x30 + 1] = 1;
    assert_eq!(driver.status(CREATE_MKEY, create_key(&foreign, &[])), 3);
    // The target itself is out of reach, being of another domain.
    one.post(&driver, WRITE, 0, &[&remote(0x5000, target), &inline(b"no")]);
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], REMOTE_ACCESS);
}

#[test]
fn a_key_that_crosses_into_itself_ends_a_request_and_nothing_else() {
    let Pair { mut driver, mut cq, pd, mut one, mut two, .. } = pair("itself");
    // A key's number is not known before: one of many is as it was guessed.
    let mut itself = free_key(&mut driver, 1, pd);
    for _ in 0..20_000 {
        let guess = itself.wrapping_add(1 << 8);
        itself = driver.create(CREATE_MKEY, create_key(&crossing(pd, guess, 0x1000), &[])) << 8;
        if itself == guess {
            break;
        }
    }
    one.post(&driver, SEND, 0, &[&data(itself, 0, 8)]);
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], LOCAL_PROTECTION);
    assert_eq!(two.state(&mut driver), 3);
    two.post(&driver, 0x3e, 0, &[]);
    cq.expect(&driver, REQUEST_ERROR);
    let nothing = create_key(&crossing(pd, itself, 0), &[]);
    assert_eq!(driver.status(CREATE_MKEY, nothing), 3, "no byte");
}

#[test]
fn keys_in_a_circle_end_a_request_and_nothing_else() {
    let Pair { mut driver, mut cq, pd, mut one, mut two, .. } = pair("circle");
    let key = free_key(&mut driver, 2, pd);
    let list = [data(key, 0, 4096), vec![0; 48]].concat();
    let itself = umr(CHECK_NOT_FREE, mask::ALL, &context(2, pd, 0, 0, 4096), &list);
    two.post(&driver, UMR, key, &[&itself]);
    cq.expect(&driver, REQUEST);
    one.post(&driver, SEND, 0, &[&data(key, 0, 8)]);
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], LOCAL_PROTECTION);
    assert_eq!(two.state(&mut driver), 3);
    two.post(&driver, 0x3e, 0, &[]);
    cq.expect(&driver, REQUEST_ERROR);
}

#[test]
fn lists_are_no_longer_than_the_device_says() {
    const LIMITS: u8 = 8;
    let Pair { mut driver, pd, .. } = pair("length");
    let mut query = vec![0; 16];
    field(&mut query, 0x30, 16, 1);
    let log = driver.command(0x100, query, 16 + 4096)[16 + 0x11a / 8] & 0x3f;
    let of = |entries: u64| {
        let mut context = free(context(2, pd, 0, 0, 0));
        field(&mut context, 0x1a0, 32, entries);
        create_key(&context, &[])
    };
    assert_eq!(log, 16);
    assert_eq!(driver.status(CREATE_MKEY, of(1 << log)), 0);
    assert_eq!(driver.status(CREATE_MKEY, of((1 << log) + 1)), LIMITS);
    assert_eq!(driver.status(CREATE_MKEY, of(u32::MAX.into())), LIMITS);
}

#[test]
fn runs_are_repeated_within_their_key_and_no_further() {
    let Pair { mut driver, mut cq, pd, mut one, .. } = pair("strides");
    let page = driver.page();
    let below = key_over(&mut driver, pd, 0x10_0000, 0x1000, &[page]);
    let strided = free_key(&mut driver, 2, pd);
    let shown = |len| context(2, pd, 0, 0, len);
    let runs = [(10, 8, below, 0x10_0000), (10, 8, below, 0x10_0040)];
    one.post(&driver, UMR, strided, &[&umr(0, mask::ALL, &shown(48), &repeated(3, &runs))]);
    cq.expect(&driver, REQUEST);
    let bytes: Vec<u8> = (0..48).collect();
    one.post(&driver, WRITE, 0, &[&remote(0, strided), &inline(&bytes)]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(page + 10, 8), &bytes[16..24]);
    assert_eq!(driver.peek(page + 0x40 + 20, 8), &bytes[40..48]);
    // Runs that go on beyond what lies below, and around the end of all addresses.
    for runs in [[(0x800, 8, below, 0x10_0000)], [(0xffff, 8, below, u64::MAX - 16)]] {
        let Pair { mut driver, mut cq, pd, mut one, .. } = pair("beyond");
        let page = driver.page();
        let below = key_over(&mut driver, pd, 0x10_0000, 0x1000, &[page]);
        let strided = free_key(&mut driver, 2, pd);
        let runs = runs.map(|run| (run.0, run.1, below, run.3));
        one.post(&driver, UMR, strided, &[&umr(0, mask::ALL, &shown(24), &repeated(3, &runs))]);
        cq.expect(&driver, REQUEST);
        one.post(&driver, WRITE, 0, &[&remote(16, strided), &inline(b"beyond")]);
        assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], REMOTE_ACCESS);
    }
}

#[test]
fn contradictions_in_a_request_end_its_queue_pair_and_change_nothing() {
    let wrong: [fn(&mut Vec<u8>); 3] = [
        // The bytes of a turn do not add up; more runs than the key has room for; none there.
        |body| body[48 + 64 + 3] = 7,
        |body| body[48 + 64 + 14..][..2].copy_from_slice(&900u16.to_be_bytes()),
        |body| body.truncate(48 + 64 + 16),
    ];
    for change in wrong {
        let Pair { mut driver, mut cq, pd, key, mut one, .. } = pair("contradiction");
        let page = driver.page();
        let strided = free_key(&mut driver, 2, pd);
        let runs = [(10, 8, key, page)];
        let mut body = umr(0, mask::ALL, &context(2, pd, 0, 0, 8), &repeated(1, &runs));
        change(&mut body);
        one.post(&driver, UMR, strided, &[&body]);
        assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], MW_BIND);
    }
}

#[test]
fn a_queue_pair_changes_keys_of_its_own_domain_only() {
    let Pair { mut driver, mut cq, key, mut one, .. } = pair("domain");
    let other = driver.create(ALLOC_PD, vec![0; 16]);
    let foreign = free_key(&mut driver, 2, other);
    let list = [data(key, 0x20_0000, 64), vec![0; 48]].concat();
    one.post(&driver, UMR, foreign, &[&umr(0, mask::ALL, &context(2, other, 0, 0, 64), &list)]);
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], MW_BIND);
}

/// CRC32 behind blocks of 512 bytes in memory, which is checked and does not pass on the wire.
fn crc_in_memory(psv: u8) -> [u8; 64] {
    let mut format = [0; 64];
    format[..4].copy_from_slice(&[2 << 6, 0xf0, 0, 1]);
    format[12..16].copy_from_slice(&[0x22, 0, 0, psv]);
    format
}

#[test]
fn a_bad_signature_is_told_once_before_the_completion() {
    const CREATE_PSV: u16 = 0x600;
    const SET_PSV: u8 = 0x20;
    const SIGNATURE_ERROR: u8 = 12;
    const FAILED_CHECKS: u64 = 1 << 9;
    const SIGNED: u64 = 1 << 12;
    let Pair { mut driver, mut cq, pd, key, mut one, mut two, .. } = pair("signature");
    let mut input = vec![0; 16];
    input[8] = 1 << 4;
    input[9..12].copy_from_slice(&pd.to_be_bytes()[1..]);
    let psv = driver.command(CREATE_PSV, input, 0x20)[0x13];
    let mut made = free(context(2, pd, 0, 0, 0));
    made[12] |= 1 << 6;
    made[0x23] = 4;
    let signed = driver.create(CREATE_MKEY, create_key(&made, &[])) << 8;
    let (page, to) = (driver.page(), driver.page());
    let mut shown = context(2, pd, 0, 0, 516);
    shown[12] |= 1 << 6;
    let list = [data(key, page, 516), vec![0; 48]].concat();
    let mask = mask::ALL | SIGNED | FAILED_CHECKS;
    one.post(&driver, UMR, signed, &[&umr_signing(mask, &shown, &list, &crc_in_memory(psv))]);
    cq.expect(&driver, REQUEST);
    one.post(&driver, SET_PSV, 0, &[&[0, 0, 0, psv, 0, 0, 0, 0], &[0; 8]]);
    cq.expect(&driver, REQUEST);
    driver.poke(page, &[7; 512]);
    let mut send = |cq: &mut crate::support::verbs::Cq, told: usize| {
        two.post_receive(&driver, key, to, 512);
        one.post(&driver, SEND, 0, &[&data(signed, 0, 512)]);
        let mut seen: Vec<Vec<u8>> = Vec::new();
        while seen.len() < 2 + told {
            seen.push(driver.poll("completions", || cq.poll(&driver)));
        }
        let opcodes: Vec<u8> = seen.iter().map(|entry| entry[63] >> 4).collect();
        let found = seen.into_iter().filter(|entry| entry[63] >> 4 == SIGNATURE_ERROR);
        let found: Vec<Vec<u8>> = found.collect();
        assert_eq!(found.len(), told, "{opcodes:?}");
        let at = |opcode| opcodes.iter().position(|seen| *seen == opcode);
        assert!(told == 0 || at(SIGNATURE_ERROR) < at(REQUEST), "{opcodes:?}");
        found.into_iter().next()
    };
    let found = send(&mut cq, 1).unwrap();
    assert_eq!(found[0x20..0x28], [&[0x20, 0, 0, 1][..], &signed.to_be_bytes()].concat());
    let block = hca::guard(hca::GuardKind::Crc32, true, &[7; 512]) as u32;
    assert_eq!(found[0x10..0x18], [[0; 4], block.to_be_bytes()].concat());
    // Nobody has taken note of it yet.
    send(&mut cq, 0);
    assert_eq!(driver.peek(to, 512), [7; 512]);
    // With the right field there is nothing to tell, and the key is as before.
    driver.poke(page + 512, &block.to_le_bytes());
    send(&mut cq, 0);
}

/// A driver that finds a window's memory missing asks what the window shows.
#[test]
fn a_query_tells_a_key_and_its_list() {
    const QUERY: u16 = 0x201;
    let Pair { mut driver, mut cq, pd, key, mut one, .. } = pair("query");
    let window = free_key(&mut driver, 2, pd);
    let shown = context(2, pd, 9, 0x100, 16);
    let list = [data(key, 0x5000, 16), vec![0; 48]].concat();
    one.post(&driver, UMR, window, &[&umr(CHECK_NOT_FREE, mask::ALL, &shown, &list)]);
    cq.expect(&driver, REQUEST);
    let about = |index: u32| {
        let mut input = vec![0; 16];
        field(&mut input, 0x48, 24, index.into());
        input
    };
    let told = driver.command(QUERY, about(window >> 8), 0x110 + 32);
    assert_eq!(told[16..80], shown);
    assert_eq!(told[0x110..], [data(key, 0x5000, 16), vec![0; 16]].concat());
    let none = free(context(2, pd, 0, 0, 0));
    one.post(&driver, UMR, window | 9, &[&umr(0, mask::FREE, &none, &[])]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.command(QUERY, about(window >> 8), 0x110)[16] & 0x40, 0x40, "free again");
    let page = driver.page();
    let mut input = vec![0; 0x110 + 16];
    input[16..80].copy_from_slice(&context(1, pd, 1, 0x1000, 0x1000));
    field(&mut input, 0x300, 32, 1);
    field(&mut input, 0x880, 64, page);
    let pages = driver.create(CREATE_MKEY, input);
    let told = driver.command(QUERY, about(pages), 0x120);
    assert_eq!(told[0x110..0x118], (page | 3).to_be_bytes());
    assert_ne!(driver.status(QUERY, about(0xabcdef)), 0);
}

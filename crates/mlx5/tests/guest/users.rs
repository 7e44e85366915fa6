//! User contexts: whose objects are, what their users may write, queues in their memory.

use crate::driver::{Pair, pair};
use crate::support::numbers::{BAD_PARAMETER, BAD_RESOURCE, BUSY, READ, SEND, UMR, WRITE};
use crate::support::verbs::{
    ALLOC_PD, CREATE_CQ, CREATE_MKEY, CREATE_QP, CREATE_UMEM, Cq, Qp, context, create_key, data,
    eq_for, free, key_over, mask, qp, remote, umr, user_cq, user_memory, user_qp,
};
use crate::support::{ALLOC_UAR, Driver, field};

const CREATE_UCTX: u16 = 0xa04;
const DESTROY_UCTX: u16 = 0xa06;
const DEALLOC_UAR: u16 = 0x803;
const DESTROY_UMEM: u16 = 0xa0a;
const DEALLOC_PD: u16 = 0x801;
const DESTROY_QP: u16 = 0x501;
const QUERY_QP: u16 = 0x50b;
const CREATE_PSV: u16 = 0x600;
const DESTROY_PSV: u16 = 0x601;

const OK: u8 = 0;
const BAD_OPERATION: u8 = 2;
const BAD_QP_STATE: u8 = 0x10;

fn user(driver: &mut Driver) -> u16 {
    driver.create(CREATE_UCTX, vec![0; 0x40]) as u16
}

/// A command of `uid` about object `number`.
fn about(uid: u16, number: u32) -> Vec<u8> {
    let mut input = vec![0; 16];
    field(&mut input, 0x10, 16, uid.into());
    field(&mut input, 0x48, 24, number.into());
    input
}

fn end(driver: &mut Driver, uid: u16) -> u8 {
    let mut input = vec![0; 16];
    field(&mut input, 0x50, 16, uid.into());
    driver.status(DESTROY_UCTX, input)
}

/// A command that makes a key, as `uid` writes it.
fn key_of(uid: u16, context: &[u8; 64]) -> Vec<u8> {
    let mut input = create_key(context, &[]);
    field(&mut input, 0x10, 16, uid.into());
    input
}

#[test]
fn objects_are_their_users_alone() {
    let Pair { mut driver, pd, .. } = pair("users");
    let (one, two) = (user(&mut driver), user(&mut driver));
    assert_ne!(one, two);
    let own = driver.create(ALLOC_PD, about(one, 0));
    let cq = user_cq(&mut driver, one);
    let qp = user_qp(&mut driver, one, own, &cq);
    // Another user, and one that there is not, find nothing; the driver does.
    for (uid, status) in [(two, BAD_RESOURCE), (77, BAD_RESOURCE), (one, OK), (0, OK)] {
        assert_eq!(driver.status(QUERY_QP, about(uid, qp.number)), status, "{uid}");
    }
    assert_eq!(driver.status(DESTROY_QP, about(two, qp.number)), BAD_RESOURCE);
    assert_eq!(driver.status(DEALLOC_PD, about(two, own)), BAD_RESOURCE);
    // Neither another's domain nor the driver's may be named.
    let parts = free(context(2, own, 0, 0, 0));
    assert_eq!(driver.status(CREATE_MKEY, key_of(two, &parts)), BAD_RESOURCE);
    assert_eq!(driver.status(CREATE_MKEY, key_of(one, &parts)), OK);
    let drivers = free(context(2, pd, 0, 0, 0));
    assert_eq!(driver.status(CREATE_MKEY, key_of(one, &drivers)), BAD_RESOURCE);
    // What the driver made for all may be named, and only the driver ends it.
    let counters = driver.command(0x771, about(0xffff, 0), 16)[11];
    let to_init = |uid, set: u8| {
        let mut input = about(uid, qp.number);
        input.resize(0x110, 0);
        input[0x18 + 0xc] = set;
        input
    };
    let mut ended = about(one, 0);
    ended[11] = counters;
    assert_eq!(driver.status(0x772, ended), BAD_RESOURCE);
    let drivers = driver.command(0x771, about(0, 0), 16)[11];
    assert_eq!(driver.status(0x502, to_init(one, drivers)), BAD_RESOURCE);
    assert_eq!(driver.status(0x502, to_init(one, counters)), OK);
    // Later too, where the mask says that it is named; this queue pair is not that far.
    let later = |set: u8, mask: u64| {
        let mut input = to_init(one, set);
        field(&mut input, 0x80, 32, mask);
        input
    };
    for (set, mask, status) in [
        (drivers, 1 << 25, BAD_RESOURCE),
        (drivers, 0, BAD_QP_STATE),
        (counters, 1 << 25, BAD_QP_STATE),
    ] {
        assert_eq!(driver.status(0x505, later(set, mask)), status, "{set} {mask:x}");
    }
    // A context stays while something is in it.
    assert_eq!(end(&mut driver, one), BUSY);
    assert_eq!(end(&mut driver, two), OK);
    assert_eq!(end(&mut driver, two), BAD_RESOURCE);
}

/// What completes into a driver's queue the driver takes for its own.
#[test]
fn the_drivers_queues_are_nobodys_but_the_drivers() {
    const SERVICES: [(u64, bool); 5] = [(0, false), (0, true), (2, false), (3, false), (3, true)];
    const CREATE_RMP: u16 = 0x90c;
    const CREATE_XRC_SRQ: u16 = 0x705;
    let Pair { mut driver, cq: drivers, pd, .. } = pair("drivers");
    let uid = user(&mut driver);
    let domain = driver.create(ALLOC_PD, about(uid, 0));
    let cq = user_cq(&mut driver, uid);
    let uar = driver.create(ALLOC_UAR, about(uid, 0));
    let pages = [driver.page(), driver.page()];
    let mut pool = vec![0; 0x118];
    field(&mut pool, 0x280, 4, 1);
    field(&mut pool, 0x280 + 0x48, 24, pd.into());
    field(&mut pool, 0x280 + 0x80, 64, pages[0]);
    field(&mut pool, 0x280 + 0x10c, 4, 6);
    field(&mut pool, 0x280 + 0x11b, 5, 2);
    field(&mut pool, 0x880, 64, pages[1]);
    let pool = driver.create(CREATE_RMP, pool);
    let xrcd = driver.create(0x80e, about(0, 0));
    let create = |service: u64, no_sends: bool, [sends, receives]: [u32; 2], shared| {
        let mut input = about(uid, 0);
        input.resize(0x118, 0);
        let context = [
            (0x8, 8, service),
            (0x28, 24, domain.into()),
            (0x50, 1, no_sends.into()),
            (0x68, 24, uar.into()),
            (0x3e8, 24, sends.into()),
            (0x4e8, 24, receives.into()),
            (0x4c8, 24, xrcd.into()),
            (0x565, 3, if shared { 1 } else { 3 }),
            (0x568, 24, pool.into()),
        ];
        context
            .iter()
            .for_each(|(bit, width, value)| field(&mut input, 0xc0 + bit, *width, *value));
        field(&mut input, 0x880, 64, pages[0]);
        input
    };
    let (own, theirs) = (cq.number, drivers.number);
    for (service, no_sends) in SERVICES {
        // A driver puts its own in where there is none.
        let (xrc, receives_only) = (service == 3, service == 3 && no_sends);
        for (queues, shared, refused) in [
            ([own, own], false, false),
            ([theirs, own], false, !receives_only),
            ([own, theirs], false, !xrc),
            ([own, own], true, !xrc),
        ] {
            let status = driver.status(CREATE_QP, create(service, no_sends, queues, shared));
            let wanted = if refused { BAD_RESOURCE } else { OK };
            assert_eq!(status, wanted, "{service} {no_sends} {queues:?} {shared}");
        }
    }
    for (queue, status) in [(theirs, BAD_RESOURCE), (own, OK)] {
        let mut shared = about(uid, 0);
        shared.resize(0x118, 0);
        for (bit, value) in [(0x28, xrcd), (0x48, queue), (0xc8, domain)] {
            field(&mut shared, 0x80 + bit, 24, value.into());
        }
        field(&mut shared, 0x80 + 0x25, 3, 1);
        field(&mut shared, 0x80 + 0x4, 4, 2);
        field(&mut shared, 0x880, 64, pages[0]);
        assert_eq!(driver.status(CREATE_XRC_SRQ, shared), status, "{queue}");
    }
}

#[test]
fn users_do_what_is_for_users() {
    let Pair { mut driver, cq, .. } = pair("permitted");
    let uid = user(&mut driver);
    let pd = driver.create(ALLOC_PD, about(uid, 0));
    // Capabilities, pages, event queues, registers, user contexts.
    for opcode in [0x109, 0x108, 0x301, 0x805, CREATE_UCTX, DESTROY_UCTX, 0xfff] {
        let mut input = vec![0; 0x200];
        field(&mut input, 0x10, 16, uid.into());
        assert_eq!(driver.status(opcode, input), BAD_OPERATION, "{opcode:#x}");
    }
    // The machine's addresses, pages by number, and other domains.
    for mode in [0, 1, 6] {
        let key = key_of(uid, &context(mode, pd, 0, 0, 0x1000));
        assert_eq!(driver.status(CREATE_MKEY, key), BAD_OPERATION, "{mode}");
    }
    // Queue pairs that are in no domain, or speak for the port.
    for service in [0x7, 0x8, 0xc] {
        let mut input = vec![0; 0x110];
        field(&mut input, 0x10, 16, uid.into());
        field(&mut input, 0xc0 + 0x8, 8, service);
        field(&mut input, 0xc0 + 0x28, 24, pd.into());
        field(&mut input, 0xc0 + 0x3e8, 24, cq.number.into());
        assert_eq!(driver.status(CREATE_QP, input), BAD_OPERATION, "{service}");
    }
    // A queue pair that writes the machine's addresses into keys.
    let uar = driver.create(ALLOC_UAR, about(uid, 0));
    let mut input = vec![0; 0x110];
    field(&mut input, 0x10, 16, uid.into());
    field(&mut input, 0xc0 + 0x28, 24, pd.into());
    field(&mut input, 0xc0 + 0x68, 24, uar.into());
    field(&mut input, 0xc0 + 0x3e8, 24, cq.number.into());
    field(&mut input, 0xc0 + 0x394, 1, 1);
    assert_eq!(driver.status(CREATE_QP, input), BAD_OPERATION);
    // What a user context may not; there are no frames on InfiniBand.
    for capabilities in [1, 2] {
        let mut input = vec![0; 0x40];
        field(&mut input, 0x80, 32, capabilities);
        assert_eq!(driver.status(CREATE_UCTX, input), BAD_PARAMETER);
    }
}

#[test]
fn queues_in_user_memory_carry_traffic() {
    let Pair { mut driver, mut cq, key, pd, .. } = pair("usermem");
    let uid = user(&mut driver);
    let lid = driver.lid;
    // The driver's key is in the driver's domain, so the queue pairs are as well.
    let mut one = user_qp(&mut driver, 0, pd, &cq);
    let mut two = user_qp(&mut driver, 0, pd, &cq);
    one.connect(&mut driver, lid, two.number);
    two.connect(&mut driver, lid, one.number);
    let (from, to) = (driver.page(), driver.page());
    driver.poke(from, b"hello");
    two.post_receive(&driver, key, to, 64);
    one.post(&driver, SEND, 0, &[&data(key, from, 5)]);
    for _ in 0..2 {
        let entry = driver.poll("completions", || cq.poll(&driver));
        assert!(matches!(entry[63] >> 4, 0 | 2));
    }
    assert_eq!(driver.peek(to, 5), b"hello");
    one.post(&driver, WRITE, 0, &[&remote(to + 8, key), &data(key, from, 5)]);
    cq.expect(&driver, 0);
    assert_eq!(driver.peek(to + 8, 5), b"hello");
    assert_eq!(end(&mut driver, uid), OK);
}

#[test]
fn user_memory_is_named_by_its_user_within_its_bounds() {
    let Pair { mut driver, .. } = pair("bounds");
    let (one, two) = (user(&mut driver), user(&mut driver));
    let page = driver.page();
    let memory = driver.create(CREATE_UMEM, user_memory(one, &[page]));
    let uars = [one, two].map(|uid| (uid, driver.create(ALLOC_UAR, about(uid, 0))));
    let eqn = eq_for(&mut driver, 0, 6, 0).number;
    let queue = |uid: u16, memory: u32, offset: u64| {
        let mut input = vec![0; 0x110];
        field(&mut input, 0x10, 16, uid.into());
        field(&mut input, 0x80 + 0x6, 1, 1);
        field(&mut input, 0x80 + 0x20, 32, memory.into());
        // 32 entries of 64 bytes.
        field(&mut input, 0x80 + 0x63, 5, 5);
        let own = uars.iter().find(|(user, _)| *user == uid).unwrap().1;
        field(&mut input, 0x80 + 0x68, 24, own.into());
        field(&mut input, 0x80 + 0xa0, 32, eqn.into());
        field(&mut input, 0x280, 64, offset);
        field(&mut input, 0x2c0, 32, memory.into());
        field(&mut input, 0x2e0, 1, 1);
        input
    };
    assert_eq!(driver.status(CREATE_CQ, queue(two, memory, 0)), BAD_RESOURCE);
    assert_eq!(driver.status(CREATE_CQ, queue(one, memory + 1, 0)), BAD_RESOURCE);
    assert_eq!(driver.status(CREATE_CQ, queue(one, memory, 0x801)), BAD_PARAMETER);
    assert_eq!(driver.status(CREATE_CQ, queue(one, memory, u64::MAX)), BAD_PARAMETER);
    // The other event queue tells what the driver is to hear.
    let mut drowning = queue(one, memory, 0x800);
    field(&mut drowning, 0x80 + 0xa0, 32, 0);
    assert_eq!(driver.status(CREATE_CQ, drowning), BAD_RESOURCE);
    let made = driver.create(CREATE_CQ, queue(one, memory, 0x800));
    assert_eq!(driver.status(DESTROY_UMEM, about(two, memory)), BAD_RESOURCE);
    assert_eq!(driver.status(DESTROY_UMEM, about(one, memory)), BUSY);
    assert_eq!(driver.status(0x401, about(one, made)), OK);
    assert_eq!(driver.status(DESTROY_UMEM, about(one, memory)), OK);
    // More pages than are listed.
    let mut short = user_memory(one, &[page]);
    field(&mut short, 0x140, 64, u64::MAX);
    assert_eq!(driver.status(CREATE_UMEM, short), 0x50);
    assert_eq!(driver.status(DEALLOC_UAR, about(two, uars[0].1)), BAD_RESOURCE);
    assert_eq!(driver.status(DEALLOC_UAR, about(one, uars[0].1)), OK);
    assert_eq!(end(&mut driver, one), OK);
}

/// What a program's queue pair makes of keys: its windows and lists, and nothing by the machine's
/// addresses.
#[test]
fn a_programs_queue_pair_lays_out_keys_over_keys_of_its_domain_and_no_pages() {
    const MW_BIND: u8 = 0x06;
    let changes = mask::LEN | mask::START | mask::FREE;
    // The driver registered a page for the program to read, and another program's lies elsewhere.
    let begin = || {
        let Pair { mut driver, cq, pd, .. } = pair("fre");
        let (page, secret) = (driver.page(), driver.page());
        driver.poke(secret, b"secret");
        let mut registered = context(1, pd, 7, 0x1000, 0x1000);
        field(&mut registered, 0x12, 3, 0b010);
        let list = [page.to_be_bytes(), [0; 8]].concat();
        let registered = driver.create(CREATE_MKEY, create_key(&registered, &list)) << 8 | 7;
        let one = user_qp(&mut driver, 0, pd, &cq);
        let lid = driver.lid;
        one.connect(&mut driver, lid, one.number);
        (driver, cq, pd, one, registered, page, secret)
    };
    // Another page, the right to write, a longer region, no region at all.
    let mut writable = [0; 64];
    field(&mut writable, 0x12, 3, 0b111);
    for (mask, context, list) in [
        (0, [0; 64], [0x20_0003u64.to_be_bytes(), [0; 8]].concat()),
        (mask::RIGHTS, writable, Vec::new()),
        (changes, context(1, 0, 0, 0, 1 << 40), Vec::new()),
        (mask::FREE, free([0; 64]), Vec::new()),
    ] {
        let (driver, mut cq, _, mut one, registered, ..) = begin();
        one.post(&driver, UMR, registered, &[&umr(0, mask, &context, &list)]);
        assert_eq!(cq.expect(&driver, 13)[0x37], MW_BIND, "{mask:#x}");
    }
    // A list of the program's own shows what the program registered, with that one's rights or
    // fewer.
    let (mut driver, mut cq, pd, mut one, registered, page, secret) = begin();
    let other = driver.create(ALLOC_PD, vec![0; 16]);
    let foreign = key_over(&mut driver, other, 0x1000, 0x1000, &[secret]);
    let own = driver.create(CREATE_MKEY, create_key(&free(context(2, pd, 0, 0, 0)), &[])) << 8;
    let shown = context(2, pd, 0, 0, 32);
    let list = [data(registered, 0x1000, 16), data(foreign, 0x1000, 16), vec![0; 32]].concat();
    let all = changes | mask::RIGHTS;
    one.post(&driver, UMR, own, &[&umr(0, all, &shown, &list)]);
    cq.expect(&driver, 0);
    driver.poke(page, b"registered");
    let target = key_over(&mut driver, pd, 0x9000, 0x1000, &[page]);
    one.post(&driver, READ, 0, &[&remote(0, own), &data(target, 0x9100, 10)]);
    cq.expect(&driver, 0);
    assert_eq!(driver.peek(page + 0x100, 10), b"registered");
    one.post(&driver, READ, 0, &[&remote(16, own), &data(target, 0x9200, 6)]);
    cq.expect(&driver, 13);
    assert_eq!(driver.peek(page + 0x200, 6), [0; 6]);
}

#[test]
fn psvs_belong_to_domains_and_users() {
    let Pair { mut driver, pd, .. } = pair("psv");
    let uid = user(&mut driver);
    let own = driver.create(ALLOC_PD, about(uid, 0));
    let ask = |uid: u16, pd: u32, count: u64| {
        let mut input = about(uid, pd);
        field(&mut input, 0x40, 4, count);
        input
    };
    assert_eq!(driver.status(CREATE_PSV, ask(uid, pd, 1)), BAD_RESOURCE);
    assert_eq!(driver.status(CREATE_PSV, ask(uid, own, 2)), BAD_OPERATION);
    assert_eq!(driver.status(CREATE_PSV, ask(0, pd, 5)), BAD_PARAMETER);
    let answer = driver.command(CREATE_PSV, ask(0, pd, 2), 0x20);
    assert_eq!((answer[0x13], answer[0x17], answer[0x1b]), (1, 2, 0));
    let answer = driver.command(CREATE_PSV, ask(uid, own, 1), 0x20);
    assert_eq!(answer[0x13], 3);
    assert_eq!(driver.status(DESTROY_PSV, about(uid, 1)), BAD_RESOURCE);
    assert_eq!(driver.status(DESTROY_PSV, about(uid, 3)), OK);
    assert_eq!(driver.status(DESTROY_PSV, about(0, 3)), BAD_RESOURCE);
}

#[test]
fn numbers_of_queue_pairs_are_set_aside() {
    const CREATE: u16 = 0xa00;
    const DESTROY: u16 = 0xa03;
    let Pair { mut driver, cq, pd, .. } = pair("aside");
    let uid = user(&mut driver);
    let object = |uid: u16, kind: u64, log_range: u64, first: u32| {
        let mut input = vec![0; 0x20];
        field(&mut input, 0x10, 16, uid.into());
        field(&mut input, 0x30, 16, kind);
        field(&mut input, 0x40, 32, first.into());
        field(&mut input, 0x63, 5, log_range);
        input
    };
    assert_eq!(driver.status(CREATE, object(uid, 0x2d, 6, 0)), BAD_PARAMETER);
    assert_eq!(driver.status(CREATE, object(uid, 0x2c, 31, 0)), BAD_PARAMETER);
    let mut firsts = [(); 200].map(|()| driver.create(CREATE, object(uid, 0x2c, 6, 0)));
    firsts.sort_unstable();
    assert!(firsts.is_sorted_by(|one, next| one + 64 <= *next));
    let pairs = [(); 3].map(|()| qp(&mut driver, 0, pd, &cq).number);
    let is_aside = |number: u32| firsts.iter().any(|first| (*first..first + 64).contains(&number));
    assert!(!pairs.into_iter().any(is_aside), "{pairs:x?}");
    assert_eq!(driver.status(DESTROY, object(0, 0x2c, 0, firsts[0] + 1)), BAD_RESOURCE);
    let other = user(&mut driver);
    assert_eq!(driver.status(DESTROY, object(other, 0x2c, 0, firsts[0])), BAD_RESOURCE);
    assert_eq!(end(&mut driver, uid), BUSY);
    for first in firsts {
        assert_eq!(driver.status(DESTROY, object(uid, 0x2c, 0, first)), OK);
    }
    assert_eq!(end(&mut driver, uid), OK);
}

/// A reliable connection to itself, which may copy memory or not.
fn copier(driver: &mut Driver, pd: u32, cq: &Cq, copies: bool) -> Qp {
    let qp = qp(driver, 0, pd, cq);
    let lid = driver.lid;
    qp.connect_after(driver, lid, |driver| {
        let mut input = about(0, qp.number);
        input.resize(0x200, 0);
        field(&mut input, 0x40, 1, 1);
        field(&mut input, 0x840, 64, 1 << 3);
        field(&mut input, 0x882, 1, copies.into());
        driver.command(0x50e, input, 16);
    });
    qp
}

#[test]
fn memory_is_copied_by_who_may_within_keys() {
    const COPY: u8 = 0x2f;
    const PROTECTION: u8 = 0x04;
    const OPERATION: u8 = 0x02;
    let own = |driver: &mut Driver, pd, page| key_over(driver, pd, 0x5000, 0x1000, &[page]);
    let copy = |from: &[u8], to: &[u8]| [&[0; 16], from, to].concat();
    let Pair { mut driver, mut cq, pd, .. } = pair("copy");
    let (from, to) = (driver.page(), driver.page());
    let (source, target) = (own(&mut driver, pd, from), own(&mut driver, pd, to));
    let other = driver.create(ALLOC_PD, vec![0; 16]);
    let foreign = own(&mut driver, other, to);
    driver.poke(from + 8, b"copied");
    let mut one = copier(&mut driver, pd, &cq, true);
    let body = copy(&data(source, 0x5008, 6), &data(target, 0x5ff0, 6));
    one.post_modified(&driver, 1, COPY, &body);
    cq.expect(&driver, 0);
    assert_eq!(driver.peek(to + 0xff0, 6), b"copied");
    // Beyond either key, into a foreign domain, of two lengths, too long, of another kind; by who
    // may not.
    for (kind, from, to, syndrome) in [
        (1, data(source, 0x5ffc, 6), data(target, 0x5000, 6), PROTECTION),
        (1, data(source, 0x5000, 6), data(target, 0x5ffc, 6), PROTECTION),
        (1, data(source, 0x5000, 6), data(foreign, 0x5000, 6), PROTECTION),
        (1, data(source, 0x5000, 6), data(target, 0x5000, 7), OPERATION),
        (1, data(source, 0x5000, 2 << 20), data(target, 0x5000, 2 << 20), OPERATION),
        (2, data(source, 0x5000, 6), data(target, 0x5000, 6), OPERATION),
    ] {
        let mut one = copier(&mut driver, pd, &cq, true);
        one.post_modified(&driver, kind, COPY, &copy(&from, &to));
        assert_eq!(cq.expect(&driver, 13)[0x37], syndrome);
    }
    let mut one = copier(&mut driver, pd, &cq, false);
    one.post_modified(&driver, 1, COPY, &body);
    assert_eq!(cq.expect(&driver, 13)[0x37], OPERATION);
}

//! Single accesses: the fields that are generated, checked, copied and left out.

use super::*;

/// `whole` cut at random places, each piece with where it begins.
fn pieces<'a>(rng: &mut Rng, whole: &'a [u8], most: u64) -> Vec<(usize, &'a [u8])> {
    let (mut at, mut pieces) = (0, Vec::new());
    while at < whole.len() {
        let end = (at + rng.range(1, most) as usize).min(whole.len());
        pieces.push((at, &whole[at..end]));
        at = end;
    }
    pieces
}

#[test]
fn what_passes_is_generated_inserted_and_stripped() {
    let mut rng = Rng(7);
    for (memory, wire) in combinations() {
        let data = rng.bytes(9000);
        let (lies, passes) = (image(&data, &memory), image(&data, &wire));
        let mut node = node();
        let region = node.register(lies.len() as u64);
        let rules = BlockSignature::new(memory, wire, 0xff, None).unwrap();
        let what = format!("{memory:?} to {wire:?}");
        let key = signed(&mut node, &region, lies.len(), rules);
        region.set(0, &lies);
        for (at, piece) in pieces(&mut rng, &passes, 1500) {
            assert_eq!(read(&node, key, at, piece.len()).unwrap(), piece, "{what} at {at}");
        }
        assert_eq!(read(&node, key, 0, passes.len() + 1), Err(KeyError::Range));
        assert_eq!(read(&node, key, passes.len(), 1), Err(KeyError::Range));
        region.set(0, &vec![0; lies.len()]);
        for (at, piece) in pieces(&mut rng, &passes, 1500) {
            write(&node, key, at, piece);
        }
        assert!(region.get(0, lies.len()) == lies, "{what}");
        assert_eq!(node.keys.signature_error(key), Ok(None), "{what}");
    }
}

/// Where a block begins that has data byte `at`, in a domain.
fn block_of(domain: &SignatureDomain, at: usize) -> u64 {
    let index = (at / domain.block as usize) as u64;
    let dif = matches!(domain.signature, Signature::T10Dif(_));
    let long = matches!(domain.signature, Signature::Crc { guard: GuardKind::Crc64Xp10, .. });
    index * (u64::from(domain.block) + if dif || long { 8 } else { 4 })
}

pub fn a_flipped_bit_is_found_in_its_block() {
    let mut rng = Rng(8);
    for (memory, wire) in combinations() {
        let data = rng.bytes(9000);
        let (lies, passes) = (image(&data, &memory), image(&data, &wire));
        let mut node = node();
        let region = node.register(lies.len() as u64);
        let rules = BlockSignature::new(memory, wire, 0xff, None).unwrap();
        let key = signed(&mut node, &region, lies.len(), rules);
        let what = format!("{memory:?} to {wire:?}");
        // Of the first byte, and of one amid the second block.
        for at in [0usize, 4200] {
            let mut wrong = data.clone();
            wrong[at] ^= 0x10;
            for (reads, domain) in [(true, memory), (false, wire)] {
                let Some(domain) = domain else { continue };
                let mut bad = image(&data, &Some(domain));
                // The data as it is not, the fields as they were.
                let place = at + block_of(&domain, at) as usize
                    - at / domain.block as usize * domain.block as usize;
                bad[place] ^= 0x10;
                if reads {
                    region.set(0, &bad);
                    for (at, piece) in pieces(&mut rng, &passes, 900) {
                        read(&node, key, at, piece.len()).unwrap();
                    }
                } else {
                    for (at, piece) in pieces(&mut rng, &bad, 900) {
                        write(&node, key, at, piece);
                    }
                }
                let error = node.keys.signature_error(key).unwrap();
                let error = error.unwrap_or_else(|| panic!("{what}: byte {at} is not missed"));
                assert_eq!(error.fault, SignatureFault::Guard, "{what}");
                assert_eq!(error.offset, block_of(&domain, at), "{what}");
                assert_ne!(error.actual, error.expected, "{what}");
                assert_eq!(node.keys.signature_error(key), Ok(None), "it is told once");
            }
        }
    }
}

#[test]
fn flipped_bits_are_found() {
    a_flipped_bit_is_found_in_its_block();
}

#[test]
fn tags_are_told_with_what_they_should_be() {
    let mut node = node();
    let region = node.register(1040);
    let rules = BlockSignature::new(None, Some(dif(512)), 0xff, None).unwrap();
    let key = signed(&mut node, &region, 1024, rules);
    let right = image(&[5; 1024], &Some(dif(512)));
    let error = |fault, actual, expected| SignatureError { fault, actual, expected, offset: 520 };
    for (byte, expected) in [
        (520 + 514, error(SignatureFault::AppTag, 0xabcd, 0xaacd)),
        (520 + 519, error(SignatureFault::RefTag, 0x0123_4568, 0x0123_4569)),
    ] {
        let mut wrong = right.clone();
        wrong[byte] ^= 1;
        write(&node, key, 0, &wrong);
        assert_eq!(node.keys.signature_error(key), Ok(Some(expected)));
    }
    // The data is there although its field was wrong.
    assert_eq!(region.get(0, 1024), [5; 1024]);
}

#[test]
fn what_is_copied_and_checked_the_masks_say() {
    let data = [9; 1024];
    let own = dif_of(512, |tags| (tags.app_tag, tags.ref_tag) = (1, 2));
    let mut lies = image(&data, &Some(dif(512)));
    // Wrong in all parts.
    lies[512..520].iter_mut().for_each(|byte| *byte ^= 0xff);
    for (copy, check, passes) in [
        (Some(0xff), 0, lies[512..520].to_vec()),
        (Some(0), 0, image(&data, &Some(own))[512..520].to_vec()),
        (Some(0x30), 0, {
            let mut field = image(&data, &Some(own))[512..520].to_vec();
            field[2..4].copy_from_slice(&lies[514..516]);
            field
        }),
        (Some(0xff), 0xff, lies[512..520].to_vec()),
    ] {
        let mut node = node();
        let region = node.register(1040);
        let rules = BlockSignature::new(Some(dif(512)), Some(own), check, copy).unwrap();
        let key = signed(&mut node, &region, 1040, rules);
        region.set(0, &lies);
        assert_eq!(read(&node, key, 0, 520).unwrap()[512..], passes, "{copy:?}");
        let found = node.keys.signature_error(key).unwrap();
        assert_eq!(found.is_some(), check != 0, "{copy:?} {check:#x}");
    }
    // Two that nobody says how to copy: the guard is common to both, the tags are the output's.
    let mut node = node();
    let region = node.register(1040);
    let rules = BlockSignature::new(Some(dif(512)), Some(own), 0, None).unwrap();
    let key = signed(&mut node, &region, 1040, rules);
    write(&node, key, 0, &lies[..520]);
    let field = region.get(512, 8);
    assert_eq!(field[..2], lies[512..514]);
    assert_eq!(field[2..], image(&data, &Some(dif(512)))[514..520]);
}

#[test]
fn escaped_blocks_are_not_checked() {
    for (escape, app_alone, both) in [
        (Escape::Never, true, true),
        (Escape::AppTag, false, false),
        (Escape::AppAndRefTag, true, false),
    ] {
        let mut node = node();
        let region = node.register(1040);
        let wire = dif_of(512, |tags| tags.escape = escape);
        let rules = BlockSignature::new(None, Some(wire), 0xff, None).unwrap();
        let key = signed(&mut node, &region, 1024, rules);
        for (ref_tag, wrong) in [([0, 0, 0, 1], app_alone), ([0xff; 4], both)] {
            let mut bytes = vec![3; 520];
            bytes[514..516].copy_from_slice(&[0xff; 2]);
            bytes[516..].copy_from_slice(&ref_tag);
            write(&node, key, 0, &bytes);
            let found = node.keys.signature_error(key).unwrap();
            assert_eq!(found.is_some(), wrong, "{escape:?} {ref_tag:?}");
        }
    }
}

#[test]
fn signatures_stay_until_they_are_reset_or_the_key_is_free() {
    let mut node = node();
    let region = node.register(4096);
    let rules = BlockSignature::new(None, Some(dif(512)), 0xff, None).unwrap();
    let key = signed(&mut node, &region, 512, rules);
    let layout = || KeyLayout::List(vec![region.sge(0, 512)]);
    let mut done = |op| {
        node.post_send(send_wr(0, op, &[]));
        let status = node.told.sent.pop().unwrap().status;
        (status, read(&node, key, 0, 520).is_ok(), read(&node, key, 0, 512).is_ok())
    };
    let ok = WcStatus::Success;
    assert_eq!(done(set(key, layout(), SignatureChange::Keep)), (ok, true, true));
    assert_eq!(done(set(key, layout(), SignatureChange::Reset)), (ok, false, true));
    assert_eq!(done(set(key, layout(), change(rules))), (ok, true, true));
    assert_eq!(done(SendOp::LocalInvalidate(key)), (ok, false, false));
    assert_eq!(done(set(key, layout(), SignatureChange::Keep)), (ok, false, true));
    assert_eq!(done(set(key, layout(), change(rules))), (ok, true, true));
    // An atomic has no word there.
    let memory = node.keys.resolve_remote((PD, QPN), key, 0, 8, Access::REMOTE_ATOMIC).unwrap();
    assert!(memory.atomic(umem::AtomicOp::FetchAdd { add: 1 }).is_err());
    // Nor have the fields a place in a key above, or at addresses that no memory has.
    let above = node.keys.insert_indirect(PD, SIGNED).unwrap();
    let over = KeyLayout::List(vec![Sge { addr: 0, length: 64, lkey: key }]);
    node.post_send(send_wr(0, set(above, over, SignatureChange::Keep), &[]));
    assert_eq!(read(&node, above, 0, 64), Err(KeyError::Denied));
    assert_eq!(read(&node, key, usize::MAX, 2), Err(KeyError::Range));
    assert_eq!(read(&node, key, usize::MAX - 1, 1), Err(KeyError::Range));
}

#[test]
fn keys_that_cannot_have_signatures_are_refused() {
    let rules = BlockSignature::new(None, Some(dif(512)), 0xff, None).unwrap();
    let long = |region: &Region| {
        let stride = Stride { addr: region.iova, bytes: 4096, skip: 0, lkey: region.key };
        KeyLayout::Interleaved { repeat: 1 << 20, strides: vec![stride] }
    };
    let short = |region: &Region| KeyLayout::List(vec![region.sge(0, 512)]);
    type Layout<'a> = &'a dyn Fn(&Region) -> KeyLayout;
    let unsigned = IndirectInit { signatures: false, ..SIGNED };
    let cases: [(IndirectInit, Layout<'_>); 2] = [(unsigned, &short), (SIGNED, &long)];
    for (init, layout) in cases {
        let mut node = node();
        let region = node.register(4096);
        let key = node.keys.insert_indirect(PD, init).unwrap();
        assert_eq!(node.keys.signature_error(key).is_ok(), init.signatures);
        node.post_send(send_wr(1, set(key, layout(&region), change(rules)), &[]));
        assert_eq!(node.told.sent[0].status, WcStatus::MwBindErr);
    }
    // Nor can a key that has them grow so long.
    let mut node = node();
    let region = node.register(4096);
    let key = signed(&mut node, &region, 512, rules);
    node.post_send(send_wr(1, set(key, long(&region), SignatureChange::Keep), &[]));
    assert_eq!(node.told.sent[0].status, WcStatus::MwBindErr);
    assert!(node.keys.signature_error(77).is_err());
}

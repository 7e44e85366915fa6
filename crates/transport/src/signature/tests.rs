use super::*;

fn crc(block: u32) -> SignatureDomain {
    SignatureDomain { block, signature: Signature::Crc { guard: GuardKind::Crc32c, seeded: true } }
}

fn dif(block: u32) -> SignatureDomain {
    SignatureDomain { block, signature: Signature::T10Dif(tags()) }
}

fn tags() -> T10Dif {
    T10Dif {
        guard: GuardKind::T10Crc,
        seeded: false,
        app_tag: 0xabcd,
        ref_tag: 0xffff_ffff,
        increments: true,
        escape: Escape::Never,
    }
}

#[test]
fn places_and_data_are_each_others_inverse() {
    for domain in [crc(512), dif(520), crc(1)] {
        for data in 0..5000 {
            let position = domain.position(data);
            assert_eq!(domain.data(position), data);
            // A field belongs to the end of its block.
            assert!(position == 0 || domain.data(position - 1) <= data);
        }
        assert_eq!(domain.at(u64::from(domain.block)), Err((0, 0)));
        assert_eq!(domain.at(domain.stride() - 1), Err((0, domain.signature.len() - 1)));
        assert_eq!(domain.at(domain.stride()), Ok(domain.block.into()));
    }
}

#[test]
fn local_requests_count_as_linux_does() {
    let new = |memory, wire| BlockSignature::new(memory, wire, 0, None).unwrap();
    // Memory without fields, the wire with: data.
    assert_eq!(new(None, Some(dif(512))).on_wire(512..1536), 520..1560);
    // The other way round: data as well, which is what the wire has.
    assert_eq!(new(Some(dif(512)), None).on_wire(512..1536), 512..1536);
    // Both: memory's.
    assert_eq!(new(Some(dif(512)), Some(dif(512))).on_wire(520..1040), 520..1040);
    assert_eq!(new(Some(crc(512)), Some(dif(4096))).on_wire(0..516 * 8), 0..4104);
}

#[test]
fn fields_have_the_byte_order_of_their_standard() {
    let block = b"123456789";
    let signature = |guard| Signature::Crc { guard, seeded: true };
    let short = [0x83, 0x92, 0x06, 0xe3, 0, 0, 0, 0];
    assert_eq!(signature(GuardKind::Crc32c).field(7, block), short);
    let long = [0x88, 0x98, 0x79, 0x0a, 0x86, 0x14, 0x8b, 0xae];
    assert_eq!(signature(GuardKind::Crc64Xp10).field(7, block), long);
    let field = Signature::T10Dif(tags()).field(0, block);
    assert_eq!(field, [0xd0, 0xdb, 0xab, 0xcd, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(Signature::T10Dif(tags()).field(2, block)[4..], [0, 0, 0, 1]);
    let still = Signature::T10Dif(T10Dif { increments: false, ..tags() });
    assert_eq!(still.field(2, block)[4..], [0xff; 4]);
}

#[test]
fn each_byte_has_its_bit_of_the_mask() {
    let block = [7; 64];
    let signatures = [
        Signature::T10Dif(tags()),
        Signature::Crc { guard: GuardKind::Crc32, seeded: true },
        Signature::Crc { guard: GuardKind::Crc64Xp10, seeded: false },
    ];
    for signature in signatures {
        let right = signature.field(3, &block);
        assert_eq!(signature.check(3, &block, &right, 0xff), None);
        for at in 0..signature.len() {
            let mut wrong = right;
            wrong[at] ^= 1;
            let bit = signature.bit(at);
            assert!(signature.check(3, &block, &wrong, bit).is_some(), "{signature:?} {at}");
            assert_eq!(signature.check(3, &block, &wrong, !bit), None, "{signature:?} {at}");
        }
    }
    // MLX5DV_SIG_MASK_CRC32, _T10DIF_GUARD, _APPTAG and _REFTAG.
    let mask = |signature: &Signature, part: Range<usize>| {
        part.fold(0, |mask, at| mask | signature.bit(at))
    };
    assert_eq!(mask(&signatures[1], 0..4), 0xf0);
    assert_eq!(mask(&signatures[0], 0..2), 0xc0);
    assert_eq!(mask(&signatures[0], 2..4), 0x30);
    assert_eq!(mask(&signatures[0], 4..8), 0x0f);
    assert_eq!(mask(&signatures[2], 0..8), 0xff);
}

#[test]
fn the_first_wrong_part_is_told_with_both_values() {
    let signature = Signature::T10Dif(T10Dif { ref_tag: 10, ..tags() });
    let block = b"123456789";
    let error =
        |fault, actual, expected| Some(SignatureError { fault, actual, expected, offset: 0 });
    let mut found = [0xd0, 0xdc, 0xab, 0xce, 0, 0, 0, 9];
    let check = |found: &Field, mask| signature.check(3, block, found, mask);
    assert_eq!(check(&found, 0xff), error(SignatureFault::Guard, 0xd0db, 0xd0dc));
    assert_eq!(check(&found, 0x3f), error(SignatureFault::AppTag, 0xabcd, 0xabce));
    assert_eq!(check(&found, 0x0f), error(SignatureFault::RefTag, 13, 9));
    found[1] = 0xdb;
    assert_eq!(check(&found, 0xff), error(SignatureFault::AppTag, 0xabcd, 0xabce));
    assert_eq!(check(&found, 0), None);
}

#[test]
fn escaped_blocks_pass_unseen() {
    let with = |escape| Signature::T10Dif(T10Dif { escape, ..tags() });
    let check = |escape, found: Field| with(escape).check(0, &[0; 8], &found, 0xff).is_none();
    let (app, both) = ([1, 2, 255, 255, 3, 4, 5, 6], [1, 2, 255, 255, 255, 255, 255, 255]);
    let almost = [1, 2, 255, 254, 255, 255, 255, 255];
    for (escape, expected) in [
        (Escape::Never, [false, false, false]),
        (Escape::AppTag, [true, true, false]),
        (Escape::AppAndRefTag, [false, true, false]),
    ] {
        assert_eq!([app, both, almost].map(|found| check(escape, found)), expected);
    }
}

#[test]
fn copies_are_what_would_not_change() {
    let copy = |memory, wire| BlockSignature::new(Some(memory), Some(wire), 0, None).unwrap().copy;
    let other = |change: fn(&mut T10Dif)| {
        let mut tags = tags();
        change(&mut tags);
        SignatureDomain { block: 512, signature: Signature::T10Dif(tags) }
    };
    assert_eq!(copy(dif(512), dif(512)), 0xff);
    assert_eq!(copy(dif(512), other(|dif| dif.guard = GuardKind::IpChecksum)), 0x3f);
    assert_eq!(copy(dif(512), other(|dif| dif.seeded = true)), 0x3f);
    assert_eq!(copy(dif(512), other(|dif| dif.app_tag = 0)), 0xcf);
    assert_eq!(copy(dif(512), other(|dif| dif.ref_tag = 0)), 0xf0);
    assert_eq!(copy(crc(512), crc(512)), 0xff);
    assert_eq!(copy(crc(512), crc(520)), 0);
    assert_eq!(copy(crc(512), dif(512)), 0);
}

#[test]
fn impossible_signatures_are_refused() {
    let t10_as_crc = SignatureDomain {
        block: 512,
        signature: Signature::Crc { guard: GuardKind::T10Crc, seeded: true },
    };
    let crc_as_t10 = SignatureDomain {
        block: 512,
        signature: Signature::T10Dif(T10Dif { guard: GuardKind::Crc32, ..tags() }),
    };
    for (memory, wire, copy) in [
        (None, None, None),
        (Some(crc(0)), None, None),
        (None, Some(crc(MAX_BLOCK + 1)), None),
        (Some(dif(516)), None, None),
        (Some(t10_as_crc), None, None),
        (Some(crc_as_t10), None, None),
        (Some(crc(512)), None, Some(0)),
        (Some(crc(512)), Some(dif(512)), Some(0xff)),
        (Some(dif(512)), Some(dif(520)), Some(0xff)),
    ] {
        let made = BlockSignature::new(memory, wire, 0xff, copy);
        assert!(matches!(made, Err(Error::Invalid(_))), "{made:?}");
    }
}

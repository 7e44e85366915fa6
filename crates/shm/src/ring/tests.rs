use super::*;

const TAG: u16 = 0xa5a5;
/// Whose the rings are.
const BETWEEN: Between = Between { from: 5, to: 6 };

fn pair() -> (RingWriter, RingReader) {
    let writer = RingWriter::create(BETWEEN).unwrap();
    assert!(!writer.is_attached());
    let reader = RingReader::open(&writer, BETWEEN).unwrap();
    assert!(reader.attach() && writer.is_attached());
    (writer, reader)
}

/// Copies the oldest record out.
fn pop(reader: &mut RingReader, into: &mut [u8]) -> std::result::Result<Option<usize>, Broken> {
    let Some((at, Record { len, tag })) = reader.peek()? else { return Ok(None) };
    assert_eq!(tag, len as u16 ^ TAG);
    reader.read(at, &mut into[..len]);
    reader.take(len);
    Ok(Some(len))
}

/// Appends a record whose tag follows from its length.
fn push(writer: &mut RingWriter, bytes: &[u8]) -> std::result::Result<bool, Broken> {
    writer.push(bytes, bytes.len() as u16 ^ TAG)
}

fn record(number: usize) -> Vec<u8> {
    let len = number * 37 % 700;
    (0..len).map(|at| (number + at) as u8).collect()
}

#[test]
fn records_come_out_as_they_went_in_round_and_round() {
    let (mut writer, mut reader) = pair();
    let mut into = [0xee; 1024];
    let (mut pushed, mut popped) = (0, 0);
    while popped < 20_000 {
        while push(&mut writer, &record(pushed)).unwrap() {
            pushed += 1;
        }
        assert!(!writer.has_room(1024).unwrap());
        for _ in 0..popped % 300 + 1 {
            let Some(len) = pop(&mut reader, &mut into).unwrap() else { break };
            assert_eq!(into[..len], record(popped), "record {popped}");
            popped += 1;
        }
    }
    while let Some(len) = pop(&mut reader, &mut into).unwrap() {
        assert_eq!(into[..len], record(popped));
        popped += 1;
    }
    assert_eq!(popped, pushed);
    assert!(!reader.has_more() && writer.has_room(RING_BYTES / 2).unwrap());
}

#[test]
fn two_threads_agree() {
    let (mut writer, mut reader) = pair();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..50_000 {
                while !push(&mut writer, &record(number)).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        let mut into = [0; 700];
        for number in 0..50_000 {
            let len = loop {
                match pop(&mut reader, &mut into).unwrap() {
                    Some(len) => break len,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(into[..len], record(number), "record {number}");
        }
    });
}

#[test]
fn what_cannot_be_breaks_the_ring_for_whoever_reads_it() {
    let mut into = [0; 64];
    // The first record: no length, longer than the ring, longer than any, skipped.
    let len = |len: u64| (len + 1) << 16;
    for word in [1, len(RING_BYTES as u64 - 7), len(RING_BYTES as u64), 1 << 63, SKIP] {
        let (writer, mut reader) = pair();
        writer.shm.word(DATA * 8).store(word, Relaxed);
        assert!(reader.has_more());
        assert_eq!(pop(&mut reader, &mut into), Err(Broken), "{word:#x}");
    }
    // One behind it: longer than the rest of the ring.
    let (mut writer, mut reader) = pair();
    assert!(push(&mut writer, &[]).unwrap());
    writer.shm.word(DATA * 8 + 8).store(len(RING_BYTES as u64 - 15), Relaxed);
    assert_eq!(pop(&mut reader, &mut into), Ok(Some(0)));
    assert_eq!(pop(&mut reader, &mut into), Err(Broken));
    for taken in [1, u64::MAX - CAPACITY as u64] {
        let (mut writer, reader) = pair();
        reader.shm.word(TAKEN * 8).store(taken, Relaxed);
        assert_eq!(writer.has_room(RING_BYTES), Err(Broken), "{taken} words");
        assert_eq!(push(&mut writer, &[0; RING_BYTES]), Err(Broken));
    }
}

#[test]
fn a_ring_has_one_reader_and_is_one() {
    let (writer, _reader) = pair();
    assert!(!RingReader::open(&writer, BETWEEN).unwrap().attach());
    for others in [Between { from: 5, to: 7 }, Between { from: 7, to: 6 }] {
        assert_eq!(RingReader::open(&writer, others).unwrap_err(), Errno::PROTO);
    }
    let (_, other) = Shm::create("peerdma-test", (DATA + CAPACITY) * 8).unwrap();
    assert_eq!(RingReader::open(other, BETWEEN).unwrap_err(), Errno::PROTO);
    assert!(!RingWriter::create(BETWEEN).unwrap().is_attached());
}

//! Clients of all kinds at one function: well-behaved, broken, hostile, gone in the middle.

mod played;

use played::{CONFIG, Client, Registers, Served, memory, served, served_beside};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use umem::AccessError;
use vfio_user::protocol::{
    Body, ERROR, HEADER_LEN, Header, IRQ_ACTION_TRIGGER, IRQ_DATA_EVENTFD, REPLY, UNMAP_ALL,
    command,
};
use vfio_user::{Bar, BarKind, Description, Function, Host, Neighbours, serve};

const EINVAL: u32 = 22;

/// Waits until the server is done with who has gone.
fn next(served: &Served) -> Client {
    Client::greeted(served)
}

#[test]
fn registers_interrupts_and_memory_reach_the_function() {
    let served = served();
    let client = Client::greeted(&served);
    assert_eq!(client.read(CONFIG, 0, 4), Ok(vec![0x34, 0x12, 0x78, 0x56]));
    client.write(2, 8, b"hello").unwrap();
    assert_eq!(client.read(2, 9, 3), Ok(b"ell".to_vec()));
    client.write(2, 0x810, &[1; 16]).unwrap();
    assert_eq!(client.read(2, 0x810, 16), Ok(vec![1; 16]), "the interrupt table is kept");
    assert_eq!(served.function.bytes.lock().unwrap()[0x810], 0, "and not the function's");

    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let flags = IRQ_ACTION_TRIGGER | IRQ_DATA_EVENTFD;
    let set = Body::default().u32(20).u32(flags).u32(2).u32(3).u32(1);
    client.ask(command::DEVICE_SET_IRQS, set, Some(event.as_fd())).unwrap();
    served.host.interrupt(3);
    let mut count = [0; 8];
    rustix::io::read(&event, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);

    let (file, dma) = (memory(), served.host.memory());
    client.map(0x1000, 1 << 16, Some(&file)).unwrap();
    assert_eq!(dma.write(0x1000, b"x"), Err(AccessError::Fault), "no bus master yet");
    client.bus_master();
    dma.write(0x1004, b"data").unwrap();
    let mut bytes = [0; 4];
    rustix::io::pread(&file, &mut bytes, 4).unwrap();
    assert_eq!(&bytes, b"data");
    let all = Body::default().u32(24).u32(UNMAP_ALL).u64(0).u64(0);
    client.ask(command::DMA_UNMAP, all, None).unwrap();
    assert_eq!(dma.write(0x1000, b"x"), Err(AccessError::Fault));
}

#[test]
fn memory_without_a_descriptor_is_reached_by_messages_in_pieces() {
    let served = served();
    let client = Client::greeted(&served);
    client.map(0x1000, 4096, None).unwrap();
    client.bus_master();
    let dma = served.host.memory();
    let user = std::thread::spawn(move || {
        let mut bytes = [0; 100];
        let read = dma.read(0x1010, &mut bytes);
        (read, bytes, dma.write(0x1ffe, b"no"), dma.write(0x1ffe, b"xyz"))
    });
    let expect = |wanted: u16, fields: [u64; 2], reply: &[u8], error: u32| {
        let (header, body) = client.receive().expect("a request");
        assert_eq!(header.command, wanted);
        assert_eq!(body[..16], Body::default().u64(fields[0]).u64(fields[1]).0);
        let flags = if error == 0 { REPLY } else { REPLY | ERROR };
        let body = [&body[..16], reply].concat();
        let size = (HEADER_LEN + body.len()) as u32;
        let answer = Header { size, flags, error, ..header }.bytes();
        (&client.0).write_all(&[&answer[..], &body].concat()).unwrap();
    };
    expect(command::DMA_READ, [0x1010, 64], &[1; 64], 0);
    expect(command::DMA_READ, [0x1050, 36], &[2; 36], 0);
    expect(command::DMA_WRITE, [0x1ffe, 2], &[], EINVAL);
    expect(command::DMA_WRITE, [0x1ffe, 2], &[], 0);
    let (read, bytes, refused, beyond) = user.join().unwrap();
    assert_eq!((read, bytes[63], bytes[64]), (Ok(()), 1, 2));
    assert_eq!(refused, Err(AccessError::Fault), "the client refused");
    assert_eq!(beyond, Err(AccessError::Fault), "the last byte is not mapped");
}

/// A function that reads memory when its first byte is written.
struct Slow {
    host: Mutex<Option<Host>>,
    outcomes: Mutex<Vec<Result<(), AccessError>>>,
}

impl Function for Slow {
    fn description(&self) -> Description {
        let bar = Bar { size: 4096, kind: BarKind::Memory32, memory: None };
        Description { bars: [Some(bar), None, None, None, None, None], ..Description::default() }
    }
    fn bar_read(&self, _: u8, _: u64, data: &mut [u8]) {
        data.fill(0x5a);
    }
    fn bar_write(&self, _: u8, _: u64, _: &[u8]) {
        let memory = self.host.lock().unwrap().as_ref().unwrap().memory();
        let outcome = memory.read(0x1000, &mut [0; 8]);
        self.outcomes.lock().unwrap().push(outcome);
    }
    fn takes_time(&self, _: u8, offset: u64) -> bool {
        offset == 0
    }
    fn reset(&self) {}
}

/// What a write sets off may need the machine's memory, and the machine must not wait for it.
#[test]
fn a_write_that_takes_time_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let host = Host::new();
    let slow = Slow { host: Mutex::new(Some(host.clone())), outcomes: Mutex::default() };
    let slow = Arc::new(slow);
    let _server = serve(&path, host, slow.clone()).unwrap();
    let client = Client(UnixStream::connect(&path).unwrap());
    client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.ask(command::VERSION, Body::default().u16(0).u16(0).bytes(b"{}\0"), None).unwrap();
    client.map(0x1000, 4096, None).unwrap();
    client.bus_master();
    client.write(0, 8, &[1]).unwrap();
    client.read(0, 16, 4).unwrap();
    assert_eq!(*slow.outcomes.lock().unwrap(), [Err(AccessError::Fault)], "the thread that serves");

    client.write(0, 0, &[1]).unwrap();
    let (header, body) = client.receive().unwrap();
    assert_eq!(header.command, command::DMA_READ);
    assert_eq!(client.read(0, 16, 4), Ok(vec![0x5a; 4]), "while it waits");
    client.write(0, 0, &[2]).unwrap();
    let body = [&body[..16], &[7; 8]].concat();
    let size = (HEADER_LEN + body.len()) as u32;
    let answer = Header { size, flags: REPLY, ..header }.bytes();
    (&client.0).write_all(&[&answer[..], &body].concat()).unwrap();

    // The second one, whose answer never comes: a reset does not wait for it.
    assert_eq!(client.receive().unwrap().0.command, command::DMA_READ);
    client.write(0, 0, &[3]).unwrap();
    client.ask(command::DEVICE_RESET, Body::default(), None).unwrap();
    let fault = Err(AccessError::Fault);
    assert_eq!(*slow.outcomes.lock().unwrap(), [fault, Ok(()), fault], "the third is forgotten");
    *slow.host.lock().unwrap() = None;
}

#[test]
fn more_writes_than_may_wait_hold_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let host = Host::new();
    let slow = Slow { host: Mutex::new(Some(host.clone())), outcomes: Mutex::default() };
    let slow = Arc::new(slow);
    let _server = serve(&path, host, slow.clone()).unwrap();
    let client = Client(UnixStream::connect(&path).unwrap());
    client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.ask(command::VERSION, Body::default().u16(0).u16(0).bytes(b"{}\0"), None).unwrap();
    client.map(0x1000, 4096, None).unwrap();
    client.bus_master();
    // Each waits for an answer that never comes, for 10 s if nobody cuts that short.
    let mut longest = Duration::ZERO;
    let write = Body::default().u64(0).u32(0).u32(1).bytes(&[1]);
    for _ in 0..20_000 {
        let begun = std::time::Instant::now();
        client.send(command::REGION_WRITE, &write, None);
        while client.receive().unwrap().0.flags & REPLY == 0 {}
        longest = longest.max(begun.elapsed());
    }
    assert!(longest < Duration::from_secs(10), "a write waited for its own answer");
    client.send(command::DEVICE_RESET, &Body::default(), None);
    while client.receive().unwrap().0.flags & REPLY == 0 {}
    *slow.host.lock().unwrap() = None;
}

/// A function whose only BAR is memory.
struct Memory(Arc<OwnedFd>);

impl Function for Memory {
    fn description(&self) -> Description {
        let kind = BarKind::Memory64 { prefetchable: true };
        let bar = Bar { size: 1 << 16, kind, memory: Some(self.0.clone()) };
        Description { bars: [Some(bar), None, None, None, None, None], ..Description::default() }
    }
    fn bar_read(&self, _: u8, _: u64, _: &mut [u8]) {}
    fn bar_write(&self, _: u8, _: u64, _: &[u8]) {}
    fn reset(&self) {}
}

#[test]
fn a_neighbours_memory_is_reached_without_a_message_while_it_answers() {
    let neighbours = Neighbours::default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory");
    let file = Arc::new(memory());
    let beside = Host::beside(&neighbours);
    let _server = serve(&path, beside, Arc::new(Memory(file.clone()))).unwrap();
    let gpu = Client(UnixStream::connect(&path).unwrap());
    gpu.ask(command::VERSION, Body::default().u16(0).u16(0).bytes(b"{}\0"), None).unwrap();
    let served = served_beside(Host::beside(&neighbours));
    let client = Client::greeted(&served);
    client.bus_master();
    let dma = served.host.memory();

    // Its place in two writes, then memory space.
    gpu.write(CONFIG, 0x14, &3u32.to_le_bytes()).unwrap();
    gpu.write(CONFIG, 0x10, &0x4_0000u32.to_le_bytes()).unwrap();
    gpu.write(CONFIG, 4, &[2, 0]).unwrap();
    client.map(0x3_0004_0000, 1 << 16, None).unwrap();
    dma.write(0x3_0004_0008, b"direct").unwrap();
    let mut bytes = [0; 6];
    rustix::io::pread(&*file, &mut bytes, 8).unwrap();
    assert_eq!(&bytes, b"direct");

    // The machine writes no BAR again after a reset.
    gpu.ask(command::DEVICE_RESET, Body::default(), None).unwrap();
    gpu.write(CONFIG, 4, &[2, 0]).unwrap();
    let all = Body::default().u32(24).u32(UNMAP_ALL).u64(0).u64(0);
    client.ask(command::DMA_UNMAP, all, None).unwrap();
    client.map(0x3_0004_8000, 4096, None).unwrap();
    dma.write(0x3_0004_8000, b"again!").unwrap();
    rustix::io::pread(&*file, &mut bytes, 0x8000).unwrap();
    assert_eq!(&bytes, b"again!");

    // One that does not answer is the machine's affair again.
    gpu.write(CONFIG, 4, &[0, 0]).unwrap();
    client.map(0x3_0004_0000, 4096, None).unwrap();
    let user = std::thread::spawn(move || dma.read(0x3_0004_0000, &mut [0; 4]));
    assert_eq!(client.receive().unwrap().0.command, command::DMA_READ);
    drop(client);
    assert_eq!(user.join().unwrap(), Err(AccessError::Fault));
}

#[test]
fn a_client_that_goes_wakes_who_waits_for_it_and_leaves_a_reset_function() {
    let served = served();
    let client = Client::greeted(&served);
    client.write(2, 0, b"old").unwrap();
    client.map(0, 4096, None).unwrap();
    client.bus_master();
    let dma = served.host.memory();
    let user = std::thread::spawn(move || dma.read(0, &mut [0; 8]));
    assert_eq!(client.receive().unwrap().0.command, command::DMA_READ);
    drop(client);
    assert_eq!(user.join().unwrap(), Err(AccessError::Fault));
    let client = next(&served);
    assert_eq!(served.function.resets.load(SeqCst), 1);
    assert_eq!(client.read(2, 0, 3), Ok(vec![0; 3]));
    assert_eq!(client.read(CONFIG, 4, 1), Ok(vec![0]), "no bus master any more");
    assert_eq!(served.host.memory().read(0, &mut [0]), Err(AccessError::Fault));
}

#[test]
fn a_function_level_reset_keeps_the_machines_memory() {
    let served = served();
    let client = Client::greeted(&served);
    let file = memory();
    client.map(0, 4096, Some(&file)).unwrap();
    client.bus_master();
    client.ask(command::DEVICE_RESET, Body::default(), None).unwrap();
    assert_eq!(served.function.resets.load(SeqCst), 1);
    assert_eq!(served.host.memory().read(0, &mut [0]), Err(AccessError::Fault));
    client.bus_master();
    assert_eq!(served.host.memory().read(0, &mut [0]), Ok(()));
    let capability = client.read(CONFIG, 0x60, 1).unwrap();
    assert_eq!(capability, [0x10], "the PCI Express capability");
    client.write(CONFIG, 0x68, &0x8000u16.to_le_bytes()).unwrap();
    assert_eq!(client.read(CONFIG, 4, 1), Ok(vec![0]));
    assert_eq!(served.function.resets.load(SeqCst), 2);
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let served = served();
    let client = Client::greeted(&served);
    let refused = |region, offset, count| {
        assert_eq!(client.read(region, offset, count), Err(EINVAL), "{region} {offset} {count}");
    };
    refused(2, 4090, 7);
    refused(2, u64::MAX, 2);
    refused(0, 0, 1);
    refused(6, 0, 1);
    refused(CONFIG, 4095, 2);
    refused(u32::MAX, 0, 1);
    assert_eq!(client.write(2, 4096, b"x"), Err(EINVAL));
    let ask = |command, body| client.ask(command, body, None);
    assert_eq!(ask(command::DEVICE_GET_REGION_INFO, Body::default().u64(32).u32(9)), Err(EINVAL));
    assert_eq!(ask(command::DEVICE_GET_REGION_INFO, Body::default().u64(31).u32(1)), Err(EINVAL));
    assert_eq!(ask(command::DEVICE_GET_IRQ_INFO, Body::default().u64(16).u32(5)), Err(EINVAL));
    let flags = IRQ_ACTION_TRIGGER | IRQ_DATA_EVENTFD;
    let far = Body::default().u32(20).u32(flags).u32(2).u32(u32::MAX).u32(2);
    assert_eq!(ask(command::DEVICE_SET_IRQS, far), Err(EINVAL));
    assert_eq!(ask(command::DMA_MAP, Body::default().u64(0)), Err(EINVAL));
    assert!(ask(command::DEVICE_GET_REGION_IO_FDS, Body::default()).is_err());
    let file = memory();
    assert_eq!(client.map(0, 1 << 20, Some(&file)), Err(EINVAL), "past the file");
    // A descriptor that is no memory.
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    assert!(client.map(0, 4096, Some(&event)).is_err());
    assert_eq!(client.read(CONFIG, 0, 1), Ok(vec![0x34]), "and all is well");
}

#[test]
fn bytes_that_are_no_conversation_end_it_and_the_next_client_is_served() {
    let served = served();
    let version = |major: u16, json: &[u8]| Body::default().u16(major).u16(0).bytes(json);
    let wrong: [(u16, Body); 4] = [
        (command::REGION_READ, Body::default().u64(0).u32(CONFIG).u32(1)),
        (command::VERSION, version(1, b"{}\0")),
        (command::VERSION, version(0, b"{\"capabilities\":7}\0")),
        (command::VERSION, version(0, b"\xff\xfe\0")),
    ];
    for (command, body) in wrong {
        let client = Client::connect(&served);
        assert_eq!(client.ask(command, body, None), Err(EINVAL));
        assert!(client.receive().is_none(), "hung up on");
    }
    for size in [0u32, 15, u32::MAX] {
        let client = Client::connect(&served);
        let header = Header { id: 0, command: 1, size, flags: 0, error: 0 };
        (&client.0).write_all(&header.bytes()).unwrap();
        assert!(client.receive().is_none(), "hung up on");
    }
    drop(Client::connect(&served));
    let half = Client::greeted(&served);
    (&half.0).write_all(&[9; 7]).unwrap();
    drop(half);
    assert_eq!(next(&served).read(CONFIG, 0, 1), Ok(vec![0x34]));
}

/// SplitMix64, so that a run can be repeated.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 27
}

#[test]
fn the_server_outlives_any_messages() {
    let served = served();
    let mut state = 1;
    for _ in 0..30 {
        let client = Client::greeted(&served);
        let mut reader = client.0.try_clone().unwrap();
        let drain = std::thread::spawn(move || {
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
        });
        for _ in 0..100 {
            let command = (random(&mut state) % 16) as u16;
            let words = random(&mut state) % 8;
            let small = random(&mut state).is_multiple_of(2);
            let word = |state: &mut u64| random(state) & if small { 0xfff } else { u64::MAX };
            let body = (0..words).fold(Body::default(), |body, _| body.u64(word(&mut state)));
            let size = (HEADER_LEN + body.0.len()) as u32;
            let header = Header { id: 1, command, size, flags: 0, error: 0 };
            let bytes = [&header.bytes()[..], &body.0].concat();
            if (&client.0).write_all(&bytes).is_err() {
                break;
            }
        }
        client.0.shutdown(std::net::Shutdown::Both).unwrap();
        drain.join().unwrap();
    }
    assert_eq!(next(&served).read(CONFIG, 0, 1), Ok(vec![0x34]));
}

#[test]
fn a_socket_is_taken_over_from_the_dead_and_not_from_the_living() {
    let served = served();
    let again = serve(&served.path, Host::new(), Arc::new(Registers::default()));
    assert_eq!(again.err().unwrap().kind(), std::io::ErrorKind::AddrInUse);
    let dead = served.path.with_extension("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let server = serve(&dead, Host::new(), Arc::new(Registers::default())).unwrap();
    drop(server);
    assert!(!dead.exists(), "a server that ends takes its socket away");
}

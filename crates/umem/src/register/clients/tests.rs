use super::*;
use crate::check::rereg;
use crate::{AccessError, Offered, PeerMapping, Ticket};
use dmabuf::{DmaBuf, Exporter, Extent, Hold, Mapped};
use pcie::{Platform, Target};
use std::sync::mpsc;
use std::time::Duration;

const PAGE: u64 = 64 << 10;
const BASE: u64 = 1 << 40;
const RW: AccessFlags = AccessFlags::LOCAL_WRITE;

/// What a client was asked, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// Owns addresses from [`BASE`] on, which nobody can touch there; its bytes are elsewhere.
struct Client {
    name: &'static str,
    bytes: Option<&'static mm::Mapping>,
    log: Log,
    ticket: Arc<Mutex<Option<Ticket>>>,
    fails: bool,
}

struct Claimed {
    client: &'static str,
    bytes: &'static mm::Mapping,
    offset: u64,
    log: Log,
    ticket: Arc<Mutex<Option<Ticket>>>,
    fails: bool,
}

struct Pages(&'static mm::Mapping, Log);

impl Exporter for Pages {
    fn name(&self) -> &str {
        "pages"
    }
    fn map(&self, request: &AttachRequest<'_>, _place: usize) -> Result<Mapped, dmabuf::Error> {
        let gpu = request.platform.named("gpu0").unwrap().address;
        let route = request.platform.route(request.function, Target::Function(gpu))?;
        let extents = vec![Extent { memory: self.0.sink() }];
        Ok(Mapped { extents, block: mm::page_size(), route })
    }
    fn unmap(&self, _mapped: &Mapped) {
        self.1.lock().unwrap().push("unmapped".into());
    }
}

impl Claimed {
    fn note(&self, what: &str) {
        self.log.lock().unwrap().push(format!("{} {what}", self.client));
    }
}

impl PeerMemory for Claimed {
    fn get_pages(&self, ticket: Ticket) -> Result<(), RegError> {
        self.note("get_pages");
        *self.ticket.lock().unwrap() = Some(ticket);
        if self.fails { Err(RegError::Fault) } else { Ok(()) }
    }
    fn dma_map(&self, request: &AttachRequest<'_>) -> Result<PeerMapping, RegError> {
        self.note("dma_map");
        let pages = DmaBuf::new(self.bytes.len(), Box::new(Pages(self.bytes, self.log.clone())));
        let attachment = pages.attach(request, Hold::Pinned)?;
        if self.client == "hasty" {
            let ticket = self.ticket.lock().unwrap().clone();
            assert!(ticket.unwrap().invalidate());
        }
        Ok(PeerMapping { attachment, offset: self.offset })
    }
    fn dma_unmap(&self) {
        self.note("dma_unmap");
    }
    fn put_pages(&self) {
        self.note("put_pages");
    }
    fn page_size(&self) -> u64 {
        PAGE
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.note("release");
    }
}

impl PeerClient for Client {
    fn name(&self) -> &str {
        self.name
    }
    fn version(&self) -> &str {
        "1.2"
    }
    fn acquire(&self, addr: u64, _len: u64) -> Option<Box<dyn PeerMemory>> {
        self.log.lock().unwrap().push(format!("{} acquire", self.name));
        let (bytes, client) = (self.bytes?, self.name);
        let offset = addr.checked_sub(BASE)?;
        let (log, ticket, fails) = (self.log.clone(), self.ticket.clone(), self.fails);
        Some(Box::new(Claimed { client, bytes, offset, log, ticket, fails }))
    }
}

struct Bench {
    clients: PeerClients,
    platform: Platform,
    log: Log,
    ticket: Arc<Mutex<Option<Ticket>>>,
    bytes: &'static mm::Mapping,
}

impl Bench {
    /// One client that owns nothing, and one that owns two of its pages from [`BASE`] on.
    fn new() -> Bench {
        mm::guard::install();
        let fd = rustix::fs::memfd_create("peer", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 2 * PAGE).unwrap();
        let bytes = mm::Mapping::shared(std::os::fd::AsFd::as_fd(&fd), 2 * PAGE).unwrap();
        let bench = Bench {
            clients: PeerClients::default(),
            platform: Platform::default(),
            log: Log::default(),
            ticket: Arc::default(),
            bytes: Box::leak(Box::new(bytes)),
        };
        assert!(bench.clients.register(bench.client("none", false, false)));
        assert!(bench.clients.register(bench.client("owner", true, false)));
        bench
    }

    fn client(&self, name: &'static str, owns: bool, fails: bool) -> Box<Client> {
        let bytes = owns.then_some(self.bytes);
        let (log, ticket) = (self.log.clone(), self.ticket.clone());
        Box::new(Client { name, bytes, log, ticket, fails })
    }

    fn ask(&self, addr: u64, len: u64) -> Option<Result<Arc<Umem>, RegError>> {
        let hca = self.platform.named("peerdma0").unwrap();
        self.clients.from_user(addr, len, RW, hca, &self.platform)
    }

    fn log(&self) -> String {
        std::mem::take(&mut *self.log.lock().unwrap()).join(", ")
    }

    fn ticket(&self) -> Ticket {
        self.ticket.lock().unwrap().clone().unwrap()
    }

    fn counts(&self) -> Vec<u64> {
        let count = |file| self.clients.attribute("owner", file).unwrap().trim().parse().unwrap();
        PeerClients::FILES[1..].iter().map(|file| count(file)).collect()
    }
}

#[test]
fn clients_are_asked_in_their_order_and_give_memory_by_a_route_of_its_own() {
    let bench = Bench::new();
    let umem = bench.ask(BASE + 100, PAGE).unwrap().unwrap();
    assert_eq!(bench.log(), "none acquire, owner acquire, owner get_pages, owner dma_map");
    assert_eq!(umem.segments()[0].route.map_type().to_string(), "BUS_ADDR");
    umem.enter().unwrap().write(PAGE - 3, b"end").unwrap();
    let mut seen = [0; 3];
    bench.bytes.source().part(100 + PAGE - 3, seen.len() as u64).unwrap().read(&mut seen).unwrap();
    assert_eq!(&seen, b"end");
    assert_eq!(bench.counts(), [1, 0, 2, 0, 2 * PAGE, 0, 0]);
    assert!(umem.is_peer() && !umem.is_dmabuf());
    assert!(rereg(2, (0, 0), RW, Offered::default(), &umem).is_ok());
    drop(umem);
    assert_eq!(bench.log(), "unmapped, owner dma_unmap, owner put_pages, owner release");
    assert_eq!(bench.counts(), [1, 1, 2, 2, 2 * PAGE, 2 * PAGE, 0]);
}

#[test]
fn what_nobody_claims_is_left_and_what_cannot_be_is_refused() {
    let bench = Bench::new();
    assert!(bench.ask(4096, 4096).is_none());
    assert_eq!(bench.log(), "none acquire, owner acquire");
    assert_eq!(bench.ask(BASE, u64::MAX).unwrap().unwrap_err(), RegError::Overflow);
    assert_eq!(bench.ask(BASE, 0).unwrap().unwrap_err(), RegError::Pages(0));
    assert_eq!(bench.log(), "", "nobody is asked for nothing");
    let beyond = bench.ask(BASE + PAGE, 2 * PAGE).unwrap().unwrap_err();
    assert!(matches!(beyond, RegError::BeyondBuffer { .. }), "{beyond}");
    assert!(bench.log().ends_with("unmapped, owner dma_unmap, owner put_pages, owner release"));
}

#[test]
fn pages_that_were_not_got_are_not_put() {
    let bench = Bench::new();
    bench.clients.unregister("owner");
    assert!(bench.clients.register(bench.client("owner", true, true)));
    assert!(!bench.clients.register(bench.client("owner", true, false)), "the name is taken");
    assert_eq!(bench.ask(BASE, PAGE).unwrap().unwrap_err(), RegError::Fault);
    assert_eq!(bench.log(), "none acquire, owner acquire, owner get_pages, owner release");
    assert_eq!(bench.counts(), [1, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn an_invalidated_region_stops_and_late_tickets_do_nothing() {
    let bench = Bench::new();
    let umem = bench.ask(BASE, PAGE).unwrap().unwrap();
    let ticket = bench.ticket();
    bench.log();
    assert!(ticket.invalidate());
    assert_eq!(bench.log(), "unmapped, owner dma_unmap, owner put_pages");
    assert_eq!(umem.enter().err(), Some(AccessError::Revoked));
    assert!(!ticket.invalidate(), "a second time");
    drop(umem);
    assert!(!ticket.invalidate(), "after the region is gone");
    assert_eq!(bench.log(), "owner release");
    assert_eq!(bench.counts(), [1, 1, 1, 1, PAGE, PAGE, 1]);
}

#[test]
fn pages_that_are_taken_away_while_they_are_mapped_are_given_back_too() {
    let bench = Bench::new();
    bench.clients.unregister("owner");
    assert!(bench.clients.register(bench.client("hasty", true, false)));
    let umem = bench.ask(BASE, PAGE).unwrap().unwrap();
    let order = "hasty put_pages, unmapped, hasty dma_unmap";
    assert!(bench.log().ends_with(order), "not only when it is deregistered");
    assert_eq!(umem.enter().err(), Some(AccessError::Revoked));
    drop(umem);
    assert_eq!(bench.log(), "hasty release");
}

#[test]
fn a_client_that_leaves_waits_for_its_regions() {
    let bench = Bench::new();
    let umem = bench.ask(BASE, PAGE).unwrap().unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        let clients = &bench.clients;
        scope.spawn(move || {
            clients.unregister("owner");
            sender.send(()).unwrap();
        });
        while bench.clients.attribute("owner", "version").is_some() {
            std::thread::yield_now();
        }
        assert!(receiver.try_recv().is_err(), "a region is there");
        drop(umem);
        receiver.recv_timeout(Duration::from_secs(20)).unwrap();
    });
    assert!(bench.ask(BASE, PAGE).is_none());
}

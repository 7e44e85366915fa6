//! `peerdma demo`: GPU memory crosses between two processes by RDMA, and a hash taken on the far
//! GPU proves it.
//!
//! This process conducts: it starts two of itself ([`peer`]) under the settings of `run`, passes
//! their messages on ([`protocol`]), judges what they found, and prints ([`report`]). It touches
//! neither GPU nor HCA.

mod buffer;
mod counters;
pub mod peer;
mod protocol;
mod report;

use crate::args::demo::{DEMO_PEER, Demo, Memory, MemoryKind, ProviderKind, Side};
use crate::args::device::{Device, Model};
use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style;
use crate::process::supervise::Interrupts;
use crate::surroundings::{settings, tree};
use counters::Counters;
use indicatif::ProgressState;
use protocol::{FromPeer, Ready, ToPeer};
use report::{Report, SideReport, Transfer};
use std::fmt::Write;
use std::fs::{File, read_to_string};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Without a sign from either side for this long, the demo has failed. Progress is reported every
/// few milliseconds.
const SILENCE: Duration = Duration::from_secs(60);

/// Runs the demo.
pub fn demo(arguments: &Demo) -> Outcome {
    let memory = memory(arguments)?;
    let (file, size) = what_to_send(arguments)?;
    let device = device(arguments);
    let platform = tree::platform(&device)?;
    let interrupts = Interrupts::begin().what("cannot hold signals back")?;
    let (session, lib) = settings::begin(&device)?;
    let tree_path = session.path().join("sysfs");
    tree::write(&device, &tree_path)?;
    let variables = settings::variables(&device, &lib, &tree_path)?;

    let said = |side| session.path().join(format!("stderr-{}", side_name(side)));
    let start = |side, events: &Sender<Event>| -> Outcome<Peer> {
        let mut command = Command::new(own_executable()?);
        command.arg(DEMO_PEER).args(["--side", side_name(side), "--size", &size.to_string()]);
        command.args(["--memory", &memory.kind.to_string()]);
        command.args(["--provider", &memory.provider.to_string()]);
        command.args(["--hca", &arguments.hca.to_string()]);
        if memory.kind == MemoryKind::DmabufPinned {
            command.env(settings::DMABUF, "pinned");
        }
        command.arg("--file").arg(&file).envs(variables.iter().map(|(name, value)| (name, value)));
        if arguments.corrupt {
            command.arg("--corrupt");
        }
        let counters = session.path().join(format!("counters-{}", side_name(side)));
        // What they say is printed afterwards, or it would be lost in the progress bar, and only if
        // it is wanted.
        command.env(settings::COUNTERS, &counters).env(settings::LOG, "1");
        command.stderr(File::create(said(side)).what("cannot write a file of the session")?);
        Peer::start(side, command, counters, events)
    };
    let (events, inbox) = channel();
    interrupts.report_to(events.clone(), Event::Interrupted);
    let near = start(Side::Near, &events)?;
    let far = start(Side::Far, &events)?;
    let conductor = Conductor { near, far, inbox, progress: Progress::new(size) };
    let report = conductor.conduct(&platform, &file, size, memory, &lib);
    if report.is_err() || arguments.device.log {
        let [near, far] = [Side::Near, Side::Far].map(|side| read_to_string(said(side)));
        tell(&near.unwrap_or_default(), &far.unwrap_or_default());
    }
    let report = report?;
    drop(session);
    report.print(arguments.json);
    Ok(0)
}

/// The device of both sides: only a ConnectX has Data Direct.
fn device(arguments: &Demo) -> Device {
    let model = match arguments.memory {
        MemoryKind::DmabufDataDirect => Model::Connectx,
        _ => arguments.device.model,
    };
    Device { model, ..arguments.device.clone() }
}

/// Prints what the sides said on stderr, once where they said the same.
fn tell(near: &str, far: &str) {
    let far = if near == far { "" } else { far };
    for line in near.lines().chain(far.lines()) {
        style::errln(format_args!("{line}"));
    }
}

/// What memory the arguments mean.
fn memory(arguments: &Demo) -> Outcome<Memory> {
    let Demo { memory: kind, provider, .. } = *arguments;
    if provider != ProviderKind::Software && !kind.is_dmabuf() {
        return Err(Failure::new(format_args!("{provider} makes no memory of kind {kind}"))
            .because("what it makes is a dma-buf")
            .remedy("leave --memory away, or --provider"));
    }
    Ok(Memory { kind, provider })
}

/// The file and the number of bytes.
fn what_to_send(arguments: &Demo) -> Outcome<(PathBuf, u64)> {
    let file = match &arguments.file {
        Some(file) => file.clone(),
        None => own_executable()?,
    };
    let cannot = format!("cannot read {}", file.display());
    let another = |failure: Failure| failure.remedy("name another file with --file");
    let metadata = std::fs::metadata(&file).what(&cannot).map_err(another)?;
    if !metadata.is_file() || metadata.len() == 0 {
        let why = if metadata.is_file() { "it is empty" } else { "it is not a regular file" };
        let what = format_args!("{} holds nothing to send", file.display());
        return Err(another(Failure::new(what).because(why)));
    }
    File::open(&file).what(&cannot).map_err(another)?;
    Ok((file, arguments.size.unwrap_or(metadata.len())))
}

fn own_executable() -> Outcome<PathBuf> {
    std::env::current_exe().what("cannot find this program's own executable")
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Near => "near",
        Side::Far => "far",
    }
}

/// What the conductor waits for.
enum Event {
    /// A side says something.
    Said(Side, FromPeer),
    /// A side closed its connection: it has ended.
    Ended(Side),
    /// A signal asks to stop.
    Interrupted(i32),
}

/// One side: its process and the connection to it.
struct Peer {
    side: Side,
    process: Child,
    connection: UnixStream,
    /// Where its library reports what it counted.
    counters: PathBuf,
}

impl Peer {
    fn start(
        side: Side,
        mut command: Command,
        counters: PathBuf,
        events: &Sender<Event>,
    ) -> Outcome<Peer> {
        let (ours, theirs) = UnixStream::pair().what("cannot make a socket pair")?;
        let process = command
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .what(format_args!("cannot start the {} side", side_name(side)))?;
        let reader = ours.try_clone().what("cannot copy a socket")?;
        let events = events.clone();
        std::thread::spawn(move || {
            let mut messages = protocol::Messages::over(reader);
            // The conductor may have gone; then nobody wants to know.
            while let Ok(Some(message)) = messages.next() {
                drop(events.send(Event::Said(side, message)));
            }
            drop(events.send(Event::Ended(side)));
        });
        Ok(Peer { side, process, connection: ours, counters })
    }

    /// Waits for its end; answers with what it counted.
    fn end(&mut self) -> Outcome<Counters> {
        let side = side_name(self.side);
        let status = self.process.wait().what("cannot wait for a side")?;
        if !status.success() {
            return Err(Failure::new(format_args!("the {side} side failed at its end"))
                .because(status)
                .remedy("see its message above"));
        }
        let report = read_to_string(&self.counters)
            .what(format_args!("the library of the {side} side did not say what it counted"))?;
        Ok(Counters::parse(&report))
    }

    fn tell(&mut self, message: &ToPeer) -> Outcome<()> {
        protocol::send(&mut self.connection, message)
            .what(format_args!("cannot reach the {} side", side_name(self.side)))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // After its work the process has ended or is about to; after a failure it must not stay.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

struct Conductor {
    near: Peer,
    far: Peer,
    inbox: Receiver<Event>,
    progress: Progress,
}

impl Conductor {
    fn conduct(
        mut self,
        platform: &pcie::Platform,
        file: &Path,
        size: u64,
        memory: Memory,
        lib: &Path,
    ) -> Outcome<Report> {
        self.progress.measure("preparing memory");
        let (mut near, mut far) = (None::<Ready>, None::<Ready>);
        while near.is_none() || far.is_none() {
            match self.next()? {
                (Side::Near, FromPeer::Ready(ready)) => near = Some(*ready),
                (Side::Far, FromPeer::Ready(ready)) => far = Some(*ready),
                (side, other) => return Err(out_of_turn(side, &other)),
            }
        }
        let (Some(near), Some(far)) = (near, far) else {
            return Err(Failure::new("a side is missing"));
        };
        self.near.tell(&ToPeer::Connect(far.endpoint))?;
        self.far.tell(&ToPeer::Connect(near.endpoint))?;
        for _ in 0..2 {
            match self.next()? {
                (_, FromPeer::Connected) => {}
                (side, other) => return Err(out_of_turn(side, &other)),
            }
        }

        self.progress.measure("RDMA WRITE");
        self.near.tell(&ToPeer::Write(far.target))?;
        let write = self.transfer()?;
        self.progress.say("hashing on the far side");
        self.far.tell(&ToPeer::Hash)?;
        let far_hash = match self.next()? {
            (Side::Far, FromPeer::Hashed { hash }) => hash,
            (side, other) => return Err(out_of_turn(side, &other)),
        };
        self.progress.measure("RDMA READ");
        self.near.tell(&ToPeer::Read(far.target))?;
        let read = self.transfer()?;
        self.progress.say("comparing on the near side");
        self.near.tell(&ToPeer::Compare)?;
        let (file_hash, difference) = match self.next()? {
            (Side::Near, FromPeer::Compared { file_hash, difference }) => (file_hash, difference),
            (side, other) => return Err(out_of_turn(side, &other)),
        };
        self.progress.done();

        judge(&file_hash, &far_hash, difference)?;
        self.near.tell(&ToPeer::End)?;
        self.far.tell(&ToPeer::End)?;
        // Both end by themselves, releasing what they registered in order.
        let near = SideReport::new(platform, memory, near, self.near.end()?);
        let far = SideReport::new(platform, memory, far, self.far.end()?);
        let library = lib.to_owned();
        let sides = [near, far];
        let file = file.to_owned();
        Ok(Report { file, size, memory, hash: file_hash, library, sides, write, read })
    }

    /// The next message; progress is shown, ends and failures end the demo.
    fn next(&mut self) -> Outcome<(Side, FromPeer)> {
        loop {
            let event = self.inbox.recv_timeout(SILENCE).map_err(|error| match error {
                RecvTimeoutError::Timeout => Failure::new("both sides are silent")
                    .because(format_args!("nothing was heard for {} s", SILENCE.as_secs()))
                    .remedy("run it again with --log and see where it stops"),
                RecvTimeoutError::Disconnected => Failure::new("both sides are gone"),
            })?;
            match event {
                Event::Said(_, FromPeer::Progress { bytes }) => self.progress.set(bytes),
                Event::Said(side, FromPeer::Failed { what, remedy }) => {
                    let failure = Failure::new(format_args!("the {} side failed", side_name(side)))
                        .because(what);
                    return Err(match remedy {
                        Some(remedy) => failure.remedy(remedy),
                        None => failure,
                    });
                }
                Event::Said(side, message) => return Ok((side, message)),
                Event::Ended(side) => return Err(self.ended(side)),
                Event::Interrupted(signal) => {
                    return Err(Failure::new(format_args!("stopped by signal {signal}"))
                        .status(u8::try_from(128 + signal).unwrap_or(1)));
                }
            }
        }
    }

    fn transfer(&mut self) -> Outcome<Transfer> {
        match self.next()? {
            (Side::Near, FromPeer::Transferred { bytes, seconds }) => {
                Ok(Transfer { bytes, seconds })
            }
            (side, other) => Err(out_of_turn(side, &other)),
        }
    }

    fn ended(&mut self, side: Side) -> Failure {
        let peer = if side == Side::Near { &mut self.near } else { &mut self.far };
        let failure = Failure::new(format_args!(
            "the {} side ended in the middle of its work",
            side_name(side)
        ));
        match peer.process.wait() {
            Ok(status) => failure.because(status).remedy("run it again with --log"),
            Err(error) => failure.because(error),
        }
    }
}

/// What proves the demo: the far GPU's hash is the file's, and what came back is what was sent.
fn judge(file_hash: &str, far_hash: &str, difference: Option<u64>) -> Outcome<()> {
    let mut reasons = Vec::new();
    if far_hash != file_hash {
        reasons.push(format!("the far side's hash is {far_hash}, the file's is {file_hash}"));
    }
    if let Some(offset) = difference {
        reasons.push(format!("what came back by RDMA READ differs first at byte {offset}"));
    }
    if reasons.is_empty() {
        return Ok(());
    }
    let failure = Failure::new("the bytes that crossed are not the bytes that were sent");
    let failure = reasons.into_iter().fold(failure, Failure::because);
    Err(failure.remedy("run it again with --trace demo.pcap and report both"))
}

fn out_of_turn(side: Side, message: &FromPeer) -> Failure {
    Failure::new(format_args!("the {} side spoke out of turn", side_name(side)))
        .because(format_args!("{message:?}"))
        .remedy("this is a defect of peerdma; please report it")
}

/// The progress bar on stderr; nothing where stderr is no terminal.
struct Progress {
    bar: indicatif::ProgressBar,
}

impl Progress {
    fn new(size: u64) -> Progress {
        Progress { bar: indicatif::ProgressBar::new(size) }
    }

    /// A step that tells its bytes.
    fn measure(&self, what: &'static str) {
        self.show(what, "{msg:20} [{wide_bar}] {done} of {all}");
    }

    /// A step without a measure.
    fn say(&self, what: &'static str) {
        self.show(what, "{msg}");
    }

    fn show(&self, what: &'static str, template: &str) {
        if let Ok(template) = indicatif::ProgressStyle::with_template(template) {
            let shown = template
                .with_key("done", |bar: &ProgressState, to: &mut dyn Write| {
                    let _ = to.write_str(&style::bytes(bar.pos()));
                })
                .with_key("all", |bar: &ProgressState, to: &mut dyn Write| {
                    let _ = to.write_str(&style::bytes(bar.len().unwrap_or_default()));
                });
            self.bar.set_style(shown.progress_chars("=> "));
        }
        self.bar.set_position(0);
        self.bar.set_message(what);
        // Drawing is limited to so many a second; a step must not show the last one's words.
        self.bar.force_draw();
    }

    fn set(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    fn done(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// `N` bytes per second in words.
fn rate(bytes: u64, seconds: f64) -> String {
    format!("{}/s", style::bytes((bytes as f64 / seconds.max(1e-9)) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_bytes_are_proof() {
        assert!(judge("a", "a", None).is_ok());
        assert!(judge("a", "b", None).unwrap_err().into_parts().0.contains("hash is b"));
        assert!(judge("a", "a", Some(7)).unwrap_err().into_parts().0.contains("byte 7"));
    }
}

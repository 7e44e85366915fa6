//! `peerdma run` as a user meets it: status, signals, environment, warnings, and what is left
//! behind.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use test_support::{note_skip, skip};

/// Folders of one test, so that tests see only their own leftovers.
struct Folders {
    root: PathBuf,
}

impl Folders {
    fn new(name: &str) -> Folders {
        let root = std::env::temp_dir().join(format!("peerdma-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        Folders { root }
    }

    fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// In the test program's own network: the calling thread moves there.
    fn peerdma(&self, arguments: &[&str]) -> Command {
        test_support::network::enter();
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerdma"));
        command.args(arguments).env("TMPDIR", self.tmp());
        command.env("XDG_CACHE_HOME", self.root.join("cache")).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.peerdma(arguments).output().unwrap()
    }

    fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.root.join(name);
        let mut file =
            std::fs::OpenOptions::new().create(true).write(true).mode(mode).open(&path).unwrap();
        file.write_all(content).unwrap();
        path
    }

    fn leftovers(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.tmp()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        // A failing test keeps its files' parent readable; a passing one removes them.
        drop(std::fs::remove_dir_all(&self.root));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles a C program; `None`, noted as a skip, where that kind of compiler is not installed.
fn compile(place: &Folders, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = place.file(&format!("{name}.c"), b"int main(void) { return 0; }\n", 0o644);
    let program = place.root.join(name);
    let output = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source).output();
    let why = match output {
        Ok(output) if output.status.success() => return Some(program),
        Ok(output) => text(&output.stderr),
        Err(error) => error.to_string(),
    };
    note_skip(&format!("cc {flags:?} is not able to: {why}"));
    None
}

#[test]
fn the_exit_status_is_the_programs() {
    let place = Folders::new("status");
    assert_eq!(place.run(&["run", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(place.run(&["run", "true"]).status.code(), Some(0));
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_signal_that_ends_the_program_ends_the_launcher() {
    let place = Folders::new("killed");
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV] {
        let status = place.run(&["run", "--", "sh", "-c", &format!("kill -{signal} $$")]).status;
        assert_eq!(status.signal(), Some(signal));
    }
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn signals_are_passed_on_and_the_program_decides() {
    let place = Folders::new("signals");
    for signal in ["INT", "TERM", "HUP", "USR1", "USR2", "QUIT"] {
        let script =
            format!("trap 'echo got; exit 9' {signal}; echo ready; while :; do sleep 0.05; done");
        // A shell cannot trap what it finds ignored, as it does in a test run that was started in
        // the background.
        let mut child = place
            .peerdma(&["run", "--", "env", "--default-signal", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        kill(child.id(), signal);
        assert_eq!(lines.next().unwrap().unwrap(), "got", "{signal}");
        assert_eq!(child.wait().unwrap().code(), Some(9), "{signal}");
    }
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_stopped_and_continued_program_goes_on() {
    let place = Folders::new("stop");
    let script = "echo $$; read line; echo end";
    let mut child = place
        .peerdma(&["run", "--", "sh", "-c", script])
        // The kernel drops stop signals in an orphaned process group, which a test run without a
        // terminal may be in.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let program: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    // Job control: the program stops, and the launcher with it, so that the shell gets its prompt
    // back.
    kill(child.id(), "TSTP");
    wait_for_state(program, 'T');
    wait_for_state(child.id(), 'T');
    kill(child.id(), "CONT");
    wait_for_state(program, 'S');
    // Somebody stops the program alone: the launcher stays awake.
    kill(program, "STOP");
    wait_for_state(program, 'T');
    kill(program, "CONT");
    wait_for_state(program, 'S');
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "end");
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_settings_go_in_front_of_the_users() {
    let place = Folders::new("env");
    let output = place
        .peerdma(&["run", "--log", "--trace", "t.pcap", "--", "sh", "-c"])
        .arg(
            "echo $LD_LIBRARY_PATH; echo $LD_PRELOAD; echo $PEERDMA_LOG; echo $PEERDMA_TRACE; \
             ls $PEERDMA_SYSFS",
        )
        .env("LD_LIBRARY_PATH", "/a:/b")
        .env("LD_PRELOAD", "libm.so.6")
        .current_dir(&place.root)
        .output()
        .unwrap();
    let out = text(&output.stdout);
    let lines: Vec<&str> = out.lines().collect();
    let (lib, rest) = lines[0].split_once(':').unwrap();
    assert_eq!(rest, "/a:/b");
    assert_eq!(lines[1], format!("{lib}/libibverbs.so.1:libm.so.6"));
    assert_eq!(lines[2], "1");
    assert_eq!(Path::new(lines[3]), place.root.join("t.pcap"));
    assert!(lines.contains(&"class"), "{lines:?}");
    assert!(Path::new(lib).join("libmlx5.so.1").exists());
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

/// In a shell of `peerdma env` this program has the library preloaded itself, and must not take the
/// software GPUs that it shows for the machine's own.
#[test]
fn a_run_within_a_run_sees_no_more_gpus() {
    let place = Folders::new("nested");
    let list = "ls /dev/dri /sys/class/drm";
    let once = place.run(&["run", "--", "sh", "-c", list]);
    let inner = format!("{} run -- sh -c '{list}'", env!("CARGO_BIN_EXE_peerdma"));
    let twice = place.run(&["run", "--", "sh", "-c", &inner]);
    assert!(text(&once.stdout).contains("renderD"), "{}", text(&once.stdout));
    assert_eq!(text(&twice.stdout), text(&once.stdout));
}

/// A library that needs CUDA's runtime gets the one that is loaded already, whatever an RPATH of
/// its own says.
#[test]
fn cudas_runtime_is_loaded_where_it_is_asked_for() {
    let place = Folders::new("runtime");
    let script = "echo $LD_PRELOAD; grep libcuda /proc/self/maps";
    let output = place.run(&["run", "--gpu", "cuda", "--", "sh", "-c", script]);
    let said = text(&output.stdout);
    let (list, maps) = said.split_once('\n').unwrap();
    let libraries: Vec<_> = list.split(':').collect();
    let names = ["/libibverbs.so.1", "/cuda/libcudart.so.12", "/cuda/libcudart.so.13"];
    assert_eq!(libraries.len(), names.len(), "{said}");
    for (library, name) in libraries.iter().zip(names) {
        assert!(library.ends_with(name) && (name == names[0] || maps.contains(library)), "{said}");
    }
    assert!(
        !maps.contains("libcuda.so"),
        "the driver's library is loaded by its first use: {said}"
    );
    assert_eq!(text(&output.stderr), "");
    let output = place.run(&["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    assert!(!text(&output.stdout).contains("cudart"));
}

#[test]
fn what_a_shell_says_with_126_and_127() {
    let place = Folders::new("notfound");
    let output = place.run(&["run", "no-such-program-here"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("to do:"));
    assert_eq!(place.run(&["run", "/no/such/program"]).status.code(), Some(127));
    let plain = place.file("plain", b"text", 0o644);
    assert_eq!(place.run(&["run", plain.to_str().unwrap()]).status.code(), Some(126));
    let output = place.run(&["run", place.root.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126));
    assert!(!text(&output.stderr).contains("chmod"), "a folder becomes no program by its mode");
    let output = place.run(&["run", "--platfrom", "dgx", "--", "true"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("neither an option"), "{}", text(&output.stderr));
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_bad_platform_is_refused_before_anything_starts() {
    let place = Folders::new("platform");
    let platform = place.file("p.toml", b"nonsense = 1\n", 0o644);
    let output =
        place.run(&["run", "--platform", platform.to_str().unwrap(), "--", "echo", "started"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    assert!(text(&output.stderr).contains("p.toml"), "{}", text(&output.stderr));
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

/// The program gets an errno; the reason comes from the library, in one line, unless the user
/// wants none.
#[test]
fn why_the_device_does_not_open_is_said_once() {
    let place = Folders::new("reason");
    let run = |log: Option<&str>| {
        let mut command = place.peerdma(&["run", "--", "ibv_devinfo"]);
        command.env("PEERDMA_TRACE", place.root.join("missing/t.pcap"));
        command.env_remove("PEERDMA_LOG").envs(log.map(|value| ("PEERDMA_LOG", value)));
        let output = command.output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr).matches("peerdma: cannot open the device: the packet trace").count()
    };
    if place.run(&["run", "ibv_devinfo"]).status.code() == Some(127) {
        skip!("ibv_devinfo is not installed (package ibverbs-utils)");
    }
    assert_eq!((run(None), run(Some("0")), run(Some("1"))), (1, 0, 1));
}

#[test]
fn programs_that_preloading_cannot_reach_run_with_a_warning() {
    let place = Folders::new("reach");
    if let Some(program) = compile(&place, "static", &["-static"]) {
        let output = place.run(&["run", program.to_str().unwrap()]);
        assert!(output.status.success());
        assert!(text(&output.stderr).contains("statically linked"), "{}", text(&output.stderr));
        // Also behind a script.
        let script = place.file("script", format!("#!{}\n", program.display()).as_bytes(), 0o755);
        let output = place.run(&["run", script.to_str().unwrap()]);
        let stderr = text(&output.stderr);
        assert!(stderr.contains("statically linked") && stderr.contains("started by"), "{stderr}");
    }
    if let Some(program) = compile(&place, "pie", &["-static-pie"]) {
        let output = place.run(&["run", program.to_str().unwrap()]);
        assert!(text(&output.stderr).contains("statically linked"), "{}", text(&output.stderr));
    }
    // What Go's linker leaves in a program, and no C library.
    let note = place.file("note.s", b".section .note.go.buildid,\"a\"\n.long 4,4,4\n", 0o644);
    if let Some(program) = compile(&place, "golang", &["-static", note.to_str().unwrap()]) {
        let output = place.run(&["run", program.to_str().unwrap()]);
        assert!(text(&output.stderr).contains("Go program"), "{}", text(&output.stderr));
    }
    // Without the C library, which is seldom installed for it.
    if let Some(program) = compile(&place, "bits32", &["-m32", "-nostdlib"]) {
        let output = place.run(&["run", program.to_str().unwrap()]);
        assert!(text(&output.stderr).contains("32-bit"), "{}", text(&output.stderr));
    }
    if let Some(program) =
        compile(&place, "musl", &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"])
    {
        let output = place.run(&["run", program.to_str().unwrap()]);
        assert!(text(&output.stderr).contains("not glibc"), "{}", text(&output.stderr));
    }
    if let Some(program) = compile(&place, "dynamic", &[]) {
        let output = place.run(&["run", program.to_str().unwrap()]);
        assert_eq!(text(&output.stderr), "");
    }
}

/// A 32-bit program without a 32-bit compiler: an ELF header is enough for the warning, and the
/// kernel refuses the rest.
#[test]
fn a_32_bit_header_is_warned_about() {
    let place = Folders::new("elf32");
    let mut header = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0];
    header.resize(52, 0);
    let program = place.file("elf32", &header, 0o755);
    let output = place.run(&["run", program.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("32-bit"), "{}", text(&output.stderr));
    assert!(!output.status.success());
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_set_user_id_program_is_warned_about() {
    let place = Folders::new("setuid");
    let Some(program) = compile(&place, "suid", &[]) else { return };
    use std::os::unix::fs::PermissionsExt;
    // SAFETY: no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root || std::os::unix::fs::chown(&program, Some(1), None).is_err() {
        skip!("only root can make a program of another user");
    }
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let output = place.run(&["run", program.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("set-user-ID"), "{}", text(&output.stderr));
}

#[test]
fn a_killed_launchers_folder_is_swept_by_the_next_run_once_the_program_ended() {
    let place = Folders::new("sweep");
    let mut child = place
        .peerdma(&["run", "--", "sh", "-c", "echo $$; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let program: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    let stdin = child.stdin.take().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let base = place.leftovers().pop().expect("the launcher was killed");
    let folders = || {
        std::fs::read_dir(&base)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().path().is_dir())
            .count()
    };
    place.run(&["run", "true"]);
    assert_eq!(folders(), 1, "the program still uses its folder");
    drop(stdin);
    wait_until(|| !Path::new(&format!("/proc/{program}")).exists());
    place.run(&["run", "true"]);
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_cache_that_cannot_be_used_is_done_without() {
    let place = Folders::new("nocache");
    let script = "echo $LD_LIBRARY_PATH; test -r $LD_PRELOAD";
    for cache in ["/proc/nonexistent", "relative", "/tmp/with space and:colon"] {
        let output = place
            .peerdma(&["run", "--", "sh", "-c", script])
            .env("XDG_CACHE_HOME", cache)
            .env("HOME", "/proc/nonexistent")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(
            text(&output.stdout).starts_with(place.tmp().to_str().unwrap()),
            "{}",
            text(&output.stdout)
        );
    }
    drop(std::fs::remove_dir_all("/tmp/with space and:colon"));
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn many_at_once_share_an_empty_cache() {
    let place = Folders::new("many");
    let children: Vec<_> = (0..6)
        .map(|_| place.peerdma(&["run", "--", "sh", "-c", "test -r $LD_PRELOAD"]).spawn().unwrap())
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(place.leftovers(), Vec::<PathBuf>::new());
}

fn kill(pid: u32, signal: &str) {
    let status =
        Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().unwrap();
    assert!(status.success());
}

fn wait_for_state(pid: u32, state: char) {
    wait_until(|| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(state))
    });
}

/// Looks again and again for a limited time; there is nothing to wait on for another process's
/// state.
fn wait_until(condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "it did not happen within 20 s");
        std::thread::yield_now();
    }
}

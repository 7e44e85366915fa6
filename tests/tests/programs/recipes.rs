//! The recipes in `packaging`, as far as they can be followed here: a workflow's steps in an
//! account of their own, and the programs of two pods.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use system::{Container, Namespace, Run, User, Wheels, is_root, pair, peerdma, skip, veth_pair};

/// The documents of a recipe; with an option they are judged.
fn documents(name: &str, options: &[&str]) -> Result<Vec<Value>, String> {
    let wheels = Wheels::installed()?;
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = Run::program(wheels.program("python3")).arg(tests.join("tools/recipe.py"));
    let said = run.args(options).arg(tests.join("../packaging").join(name)).finish().ok();
    Ok(serde_json::from_str(&said.stdout).expect("JSON"))
}

macro_rules! documents {
    ($name:literal, $options:expr) => {
        match documents($name, $options) {
            Ok(documents) => documents,
            Err(reason) => skip!("{reason}"),
        }
    };
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

/// An archive as `cargo xtask dist` makes it, of what a program that is alone in it needs.
fn archive(folder: &Path, name: &str) -> PathBuf {
    let stem = name.strip_suffix(".tar.zst").expect("an archive");
    fs::create_dir_all(folder.join(stem).join("bin")).expect("a folder");
    fs::copy(peerdma(), folder.join(stem).join("bin/peerdma")).expect("a copy of the program");
    let archive = folder.join(name);
    let pack = Run::plain("tar --zstd -c").arg("-C").arg(folder).arg("-f").arg(&archive).arg(stem);
    pack.finish().ok();
    archive
}

/// A runner calls each step's lines by `bash -e`, with what steps before have put into the file
/// that `GITHUB_PATH` names before its PATH. What the distribution's packages bring is here.
#[test]
fn a_workflows_steps() {
    for program in ["bash", "curl", "zstd", "ibv_rc_pingpong"] {
        if !system::has(program) {
            skip!("{program} is not installed");
        }
    }
    let workflow = documents!("ci-workflow.yml", &["--workflow"]);
    let job = &workflow[0]["jobs"]["verbs"];
    let name = text(&job["env"]["ARCHIVE"]).rsplit('/').next().expect("a name");
    assert_eq!(name, concat!("peerdma-", env!("CARGO_PKG_VERSION"), "-x86_64.tar.zst"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = |name: &str| folder.path().join(name);
    let archive = archive(folder.path(), name);
    for name in ["home", "work"] {
        fs::create_dir(place(name)).expect("a folder");
    }
    fs::write(place("path"), "").expect("a file");
    let mut taken = Vec::new();
    for step in list(&job["steps"]) {
        let Some(lines) = step["run"].as_str().filter(|lines| !lines.contains("apt-get")) else {
            continue;
        };
        fs::write(place("step"), lines).expect("a file");
        let added = fs::read_to_string(place("path")).expect("a file");
        let usual = std::env::var("PATH").unwrap_or_default();
        let path: Vec<&str> = added.lines().chain([usual.as_str()]).collect();
        let run = Run::plain("env -u XDG_CACHE_HOME -C").arg(place("work"));
        let run = run.args(&["bash", "-e"]).arg(place("step")).env("PATH", path.join(":"));
        let run = run.env("HOME", place("home")).env("GITHUB_PATH", place("path"));
        run.env("ARCHIVE", format!("file://{}", archive.display())).finish().ok();
        taken.push(text(&step["name"]));
    }
    assert_eq!(taken, ["Install peerdma", "See that it works here", "Test"]);
    let log = fs::read_to_string(place("work/server.log")).expect("the server's words");
    assert!(log.contains("1000 iters"), "{log}");
    assert!(place("home/.local/bin/peerdma").is_file(), "it came from elsewhere");
}

/// What Kubernetes' restricted pod security standard asks of a container, and no more is asked of
/// the cluster.
fn restricted(pod: &Value) {
    let spec = pod["spec"].as_object().expect("a specification");
    let fields: Vec<&String> = spec.keys().collect();
    assert_eq!(fields, ["containers", "restartPolicy"], "more than a container is asked for");
    for container in list(&pod["spec"]["containers"]) {
        let context = &container["securityContext"];
        assert_eq!(context["runAsNonRoot"], true);
        assert_ne!(context["runAsUser"].as_u64(), Some(0));
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["capabilities"], serde_json::json!({ "drop": ["ALL"] }));
        assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(container["image"], "localhost/peerdma:latest");
    }
}

/// The programs of both pods, each on a host of its own, as a user without any right. The client
/// knows the server by the service's name.
#[test]
fn two_pods() {
    if !is_root() {
        skip!("mount and network namespaces need root");
    }
    if !system::has("ib_write_bw") {
        skip!("ib_write_bw is not installed (package perftest)");
    }
    let documents = documents!("kubernetes.yaml", &[]);
    let object = |kind: &str, name: &str| {
        let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
        let found = documents.iter().find(is).unwrap_or_else(|| panic!("no {kind} {name}"));
        assert_eq!(found["apiVersion"], "v1");
        found
    };
    let (server, client) = (object("Pod", "peerdma-server"), object("Pod", "peerdma-client"));
    let service = object("Service", "peerdma-server");
    assert_eq!(service["spec"]["clusterIP"], "None", "an address that is translated");
    let selector = service["spec"]["selector"].as_object().expect("a selector");
    assert!(!selector.is_empty(), "the service is nobody's");
    for (label, value) in selector {
        assert_eq!(&server["metadata"]["labels"][label], value, "{label}");
    }
    let ports: Vec<_> = list(&service["spec"]["ports"]).iter().map(|port| &port["port"]).collect();
    assert_eq!(ports, [18_515, 4791]);
    let ends = veth_pair("pod", 1500);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "198.18.9.1 peerdma-server\n").expect("a file");
    let run = |pod: &Value, host: &Namespace| {
        restricted(pod);
        let words: Vec<&str> =
            list(&pod["spec"]["containers"][0]["args"]).iter().map(text).collect();
        let inside = Container::new().bind(&hosts, "/etc/hosts");
        Run::hca(words[0]).args(&words[1..]).inside(&inside).within(host).user(User::Nobody)
    };
    let (server, client) = (run(server, &ends.0), run(client, &ends.1));
    let (_, client) = pair(server, Some(&ends.0), client, 18_515);
    assert!(client.stdout.contains(" 65536      1000 "), "{client}");
}

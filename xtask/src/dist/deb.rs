//! Debian packages (deb(5)): an ar archive of a version, a tar archive of what dpkg is told, and
//! one of the files. Compressed by xz, which dpkg of every release since Debian 7 reads. It asks
//! for nothing but the C library, and names no package that it conflicts with or stands in for.

use super::compress::Compressor;
use super::files::Files;
use super::tar;
use anyhow::{Result, ensure};

/// What dpkg is told of a package.
pub struct About<'a> {
    pub name: &'a str,
    pub version: &'a str,
    /// In Debian's words: `amd64`, `arm64`.
    pub architecture: &'a str,
    /// The oldest C library that it runs with.
    pub c_library: &'a str,
    pub homepage: &'a str,
}

/// The package.
///
/// # Errors
/// xz is missing, or a file does not fit the formats.
pub fn package(about: &About, files: &Files, time_s: u64) -> Result<Vec<u8>> {
    let mut told = Files::default();
    told.text("control", control(about, files));
    let told = Compressor::Xz.compress(&tar::archive(&told, "./", time_s)?)?;
    let held = Compressor::Xz.compress(&tar::archive(files, "./", time_s)?)?;
    let mut out = b"!<arch>\n".to_vec();
    member(&mut out, "debian-binary", b"2.0\n", time_s)?;
    member(&mut out, "control.tar.xz", &told, time_s)?;
    member(&mut out, "data.tar.xz", &held, time_s)?;
    Ok(out)
}

fn control(about: &About, files: &Files) -> String {
    let About { name, version, architecture, c_library, homepage } = about;
    let kibibytes = files.size().div_ceil(1024);
    format!(
        "Package: {name}\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The peerdma developers <peerdma@localhost>\n\
         Installed-Size: {kibibytes}\n\
         Depends: libc6 (>= {c_library})\n\
         Suggests: ibverbs-utils, perftest, rdma-core\n\
         Section: net\n\
         Priority: optional\n\
         Homepage: {homepage}\n\
         Description: GPUDirect RDMA in user space\n\
         \x20A software host channel adapter that speaks RoCEv2 over UDP and appears to\n\
         \x20unmodified programs as libibverbs, for programs that are started with\n\
         \x20\"peerdma run\". It needs no NIC, no GPU, no kernel module and no root, and\n\
         \x20leaves the libibverbs of the distribution as it is.\n"
    )
}

/// Appends a member of an ar archive, of user and group 0.
fn member(out: &mut Vec<u8>, name: &str, content: &[u8], time_s: u64) -> Result<()> {
    let size = content.len();
    let header = format!("{name:<16}{time_s:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, "100644");
    ensure!(header.len() == 60, "{name} of {size} bytes does not fit an ar archive");
    out.extend(header.as_bytes());
    out.extend(content);
    if size % 2 == 1 {
        out.push(b'\n');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const ABOUT: About = About {
        name: "peerdma",
        version: "1.2.3",
        architecture: "amd64",
        c_library: "2.28",
        homepage: "https://example.org",
    };

    fn some_files() -> Files {
        let mut files = Files::default();
        files.executable("usr/bin/run", vec![0; 3000]);
        files.text("usr/share/doc/peerdma/copyright", "MIT\n");
        files
    }

    /// What dpkg-deb says of a package.
    fn asked(package: &[u8], question: &[&str]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.deb");
        std::fs::write(&file, package).unwrap();
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.arg(question[0]).arg(&file).args(&question[1..]).env("LC_ALL", "C");
        let output = dpkg.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn dpkg_reads_it() {
        if let Some(missing) = ["dpkg-deb", "xz"].into_iter().find(|name| !test_support::has(name))
        {
            test_support::skip!("{missing} is not installed");
        }
        let package = package(&ABOUT, &some_files(), 0).unwrap();
        let fields = ["-f", "Package", "Version", "Architecture", "Depends", "Installed-Size"];
        assert_eq!(
            asked(&package, &fields),
            "Package: peerdma\nVersion: 1.2.3\nArchitecture: amd64\nDepends: libc6 (>= 2.28)\n\
             Installed-Size: 3\n"
        );
        let paths = asked(&package, &["-c"]);
        let paths: Vec<&str> =
            paths.lines().filter_map(|line| line.split(' ').next_back()).collect();
        assert!(
            paths.contains(&"./usr/bin/run")
                && paths.contains(&"./usr/share/doc/peerdma/copyright")
        );
    }

    #[test]
    fn nothing_is_replaced() {
        let control = control(&ABOUT, &some_files());
        for field in ["Replaces", "Conflicts", "Breaks", "Provides", "Pre-Depends"] {
            assert!(!control.contains(field), "{field}");
        }
    }

    #[test]
    fn members_begin_at_even_places() {
        let mut out = Vec::new();
        member(&mut out, "a", b"odd", 1).unwrap();
        assert_eq!(out.len(), 64);
        assert!(member(&mut out, "a-name-of-more-than-16-bytes", b"", 1).is_err());
    }
}

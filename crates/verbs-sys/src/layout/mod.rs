//! Every field we touch lies where the installed `infiniband/verbs.h` puts it: a C program prints
//! the header's offsets, this test prints ours, and both must agree. Fields newer than the header
//! are left out of the C side.

mod table;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use table::{layouts, verbs_context_from_end};

/// One struct: its size, unless it grew since the header, and (field in C, offset here).
pub struct Layout {
    name: &'static str,
    size: Option<usize>,
    fields: Vec<(&'static str, usize)>,
}

/// Compiles `source` and returns what the program prints.
fn run_c(source: &str) -> String {
    let exe = std::env::temp_dir().join(format!("peerdma-layout-{}", std::process::id()));
    let mut cc = Command::new("cc")
        .args(["-x", "c", "-o"])
        .arg(&exe)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler (apt install gcc libibverbs-dev)");
    cc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(cc.wait().unwrap().success(), "the C program does not compile:\n{source}");
    let out = Command::new(&exe).output().unwrap();
    std::fs::remove_file(&exe).unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn every_field_lies_where_the_installed_header_puts_it() {
    if !test_support::has_header("infiniband/verbs.h") {
        test_support::skip!("the headers of verbs are not installed (package libibverbs-dev)");
    }
    let mut c = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #include <infiniband/sa.h>\n#include <rdma/ib_user_sa.h>\n\
         #include <rdma/ib_user_verbs.h>\n\
         int main(void) {\n",
    );
    let mut ours = String::new();
    for layout in layouts() {
        let name = layout.name;
        if let Some(size) = layout.size {
            writeln!(c, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
            writeln!(ours, "{name} {size}").unwrap();
        }
        for (field, offset) in layout.fields {
            writeln!(c, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));")
                .unwrap();
            writeln!(ours, "{name}.{field} {offset}").unwrap();
        }
    }
    for (field, from_end) in verbs_context_from_end() {
        writeln!(
            c,
            "printf(\"verbs_context.{field} -%zu\\n\", \
             sizeof(struct verbs_context) - offsetof(struct verbs_context, {field}));"
        )
        .unwrap();
        writeln!(ours, "verbs_context.{field} -{from_end}").unwrap();
    }
    c.push_str("return 0; }\n");
    let theirs = run_c(&c);
    assert!(theirs.lines().count() > 300);
    for (theirs, ours) in theirs.lines().zip(ours.lines()) {
        assert_eq!(theirs, ours, "left: the header, right: ours");
    }
    assert_eq!(theirs.lines().count(), ours.lines().count());
}

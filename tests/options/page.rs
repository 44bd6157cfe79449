//! The page that documents the options.

use std::fs;

use vramalloc_core::config::{OPTIONS, Role, Torch};

/// The table of docs/options.md.
fn documented_table() -> String {
    let mut table =
        String::from("| option | default | accepted | what it does |\n|---|---|---|---|\n");
    for row in OPTIONS {
        let mut name = format!("`{}`", row.key);
        for other in row.paddle.iter().chain(row.torch_keys().iter().skip(1)) {
            name += &format!("<br>`{other}`");
        }
        for variable in row.schedulers {
            name += &format!("<br>`{variable}`");
        }
        match row.torch {
            Torch::Keys(_) => name += "<br>PyTorch",
            Torch::Variable(variable) => name += &format!("<br>`{variable}`"),
            Torch::No => {}
        }
        let (default, more) = match row.role {
            Role::Own(_) => (format!("`{}`", row.default_value()), String::new()),
            Role::Sets(key) => (format!("as `{key}`"), String::new()),
            Role::NoEffect(why) => (
                "no effect".to_owned(),
                format!(" It has no effect here: {why}."),
            ),
        };
        table += &format!(
            "| {name} | {default} | *{}*: {} | {}{more} |\n",
            row.kind, row.accepted, row.help
        );
    }
    table
}

#[test]
fn the_page_holds_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/options.md");
    let page = fs::read_to_string(path).unwrap();
    let (head, rest) = page.split_once("<!-- options:").unwrap();
    let (marker, rest) = rest.split_once("-->\n").unwrap();
    let (_, tail) = rest.split_once("<!-- /options -->").unwrap();
    let expected = format!(
        "{head}<!-- options:{marker}-->\n{}<!-- /options -->{tail}",
        documented_table()
    );
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, expected).unwrap();
    } else {
        assert!(
            page == expected,
            "docs/options.md is behind the table: UPDATE_DOCS=1 cargo test --test options"
        );
    }
}

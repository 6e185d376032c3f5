//! What the experiments' servers serve, and how the dispatcher is configured: what is
//! under `/a` belongs to b1, what is under `/b` to b2, what is under `/o` to whom LARD says.

use std::fmt::Write;
use std::io;

use super::published::{Point, olympics_sizes, points};
use super::results::Way;
use crate::files::Scratch;
use crate::role::{Role, VIP};

/// The files.
pub fn make() -> io::Result<Scratch> {
    let site = Scratch::make("handoff")?;
    let documents = site.path().join("documents");
    for directory in ["a", "b", "o"] {
        std::fs::create_dir_all(documents.join(directory))?;
    }
    for (_, point) in points() {
        for (path, length) in files(point) {
            std::fs::write(documents.join(&path[1..]), vec![b'x'; length as usize])?;
        }
    }
    Ok(site)
}

/// Paths of a point's files: those of b1 and b2 take turns.
pub fn paths(point: Point) -> Vec<String> {
    files(point).into_iter().map(|(path, _)| path).collect()
}

fn files(point: Point) -> Vec<(String, u32)> {
    let both = |bytes: u32| {
        ["a", "b"]
            .map(|at| (format!("/{at}/{bytes}"), bytes))
            .to_vec()
    };
    match point {
        Point::Jumps { .. } => both(6 << 10),
        Point::Sizes { bytes } => both(bytes),
        Point::Olympics => (olympics_sizes().into_iter().enumerate())
            .map(|(number, bytes)| (format!("/o/{number}"), bytes))
            .collect(),
    }
}

/// The cluster, with flows handed over in one way.
pub fn config(way: Way) -> String {
    let mut text = format!(
        "[cluster]\nname = \"handoff\"\n\
         keys = [{{ id = 1, secret = \"000102030405060708090a0b0c0d0e0f\" }}]\n\
         [[dispatcher]]\nname = \"d1\"\naddress = \"{}\"\ninterface = \"eth0\"\nattach = \"tc\"\n",
        Role::Dispatcher.address(1)
    );
    for number in [1, 2] {
        let address = Role::Backend.address(number);
        let _ = writeln!(
            text,
            "[[backend]]\nname = \"b{number}\"\naddress = \"{address}\"\ninterface = \"eth0\""
        );
    }
    let pools = [
        ("first", "[\"b1\"]", "round-robin"),
        ("second", "[\"b2\"]", "round-robin"),
        ("both", "[\"b1\", \"b2\"]", "lard"),
    ];
    for (name, backends, policy) in pools {
        let _ = writeln!(
            text,
            "[[pool]]\nname = \"{name}\"\nbackends = {backends}\npolicy = \"{policy}\"\nhandoff = \"{}\"",
            way.name()
        );
    }
    let _ = writeln!(
        text,
        "[[service]]\nname = \"site\"\naddress = \"{VIP}:80\"\npool = \"both\"\n\
         [[service.rule]]\npath_prefix = \"/a/\"\npool = \"first\"\n\
         [[service.rule]]\npath_prefix = \"/b/\"\npool = \"second\""
    );
    text
}

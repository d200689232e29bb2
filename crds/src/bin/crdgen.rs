//! Writes the definitions of our kinds into the Helm chart. Run it from the root of the workspace.
//!
//! `crdgen` writes; `crdgen --check` writes nothing, names each file that differs, and then ends with 1.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use crds::definitions::{FOLDER, HEADER, files};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--check"] => true,
        _ => {
            eprintln!("usage: crdgen [--check], from the root of the workspace");
            return ExitCode::from(2);
        }
    };
    match drifted(Path::new(FOLDER)) {
        Ok(drifted) if drifted.is_empty() => ExitCode::SUCCESS,
        Ok(drifted) if check => {
            for name in drifted {
                eprintln!("{FOLDER}/{name} differs from the types: cargo run -p crds --features crdgen");
            }
            ExitCode::FAILURE
        }
        Ok(drifted) => write(Path::new(FOLDER), &drifted).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS),
        Err(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> ExitCode {
    eprintln!("failed to read or write {FOLDER}: {error}");
    ExitCode::FAILURE
}

/// The names of the files that aren't what the types say, and of those that no type makes any more.
fn drifted(folder: &Path) -> io::Result<Vec<String>> {
    let wanted = files();
    let differs =
        |(name, text): &(&String, &String)| fs::read_to_string(folder.join(name)).ok().as_ref() != Some(*text);
    let mut drifted: Vec<String> = wanted.iter().filter(differs).map(|(name, _)| name.clone()).collect();
    if folder.exists() {
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let ours = fs::read_to_string(folder.join(&name)).is_ok_and(|text| text.starts_with(HEADER));
            if ours && !wanted.contains_key(&name) {
                drifted.push(name);
            }
        }
    }
    Ok(drifted)
}

fn write(folder: &Path, drifted: &[String]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let wanted = files();
    for name in drifted {
        let path = folder.join(name);
        match wanted.get(name) {
            Some(text) => fs::write(path, text)?,
            None => fs::remove_file(path)?,
        }
        println!("{FOLDER}/{name}");
    }
    Ok(())
}

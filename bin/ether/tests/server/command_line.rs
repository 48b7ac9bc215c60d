//! What is printed for people: the ready line, the doctor's findings, the help.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use crate::bed::{Setup, program, run};

async fn ether(args: &[&str]) -> (i32, String) {
    let mut command = program(env!("CARGO_BIN_EXE_ether"));
    let output = command.args(args).output().await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// The doctor's finding about `subject`.
async fn finding(subject: &str, args: &[&str]) -> (i32, Value) {
    let args: Vec<&str> = ["doctor", "--json"].iter().chain(args).copied().collect();
    let (status, text) = ether(&args).await;
    let findings: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let found = findings
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["subject"] == subject)
        .cloned();
    (
        status,
        found.unwrap_or_else(|| panic!("nothing about {subject}: {text}")),
    )
}

#[tokio::test]
async fn the_ready_line_in_a_log_carries_no_code_and_the_token_is_the_owners_alone() {
    let setup = Setup::of(&["upright.mp4"]);
    let server = setup.start().await;
    assert_eq!(
        server.ready,
        format!("ether is ready: http://{}/\n", server.address)
    );
    let token = std::fs::metadata(setup.data().join("owner-token")).unwrap();
    assert_eq!(token.mode() & 0o777, 0o600);
    assert!(!server.log().contains(&server.token), "the log holds the token");
    server.get("/").await.expect(200);
    server.stop().await;
}

#[tokio::test]
async fn the_doctor_misses_an_ffmpeg_that_is_not_there() {
    let setup = Setup::new();
    let data = setup.data();
    let (status, found) = finding(
        "ffmpeg",
        &[
            "--ffmpeg",
            "/no/such/ffmpeg",
            "--data-dir",
            data.to_str().unwrap(),
        ],
    )
    .await;
    assert_eq!(
        (status, &found["grade"]),
        (5, &Value::from("failure")),
        "{found:#}"
    );
    assert!(
        found["found"].as_str().unwrap().contains("/no/such/ffmpeg"),
        "{found:#}"
    );
    assert!(found["mend"].as_str().unwrap().contains("install"), "{found:#}");
}

#[tokio::test]
async fn the_doctor_ends_as_the_server_would() {
    let setup = Setup::new();
    std::fs::write(setup.data(), b"a file").unwrap();
    let busy = setup.data();
    let busy = busy.to_str().unwrap();
    let nowhere = setup.path("nowhere");
    let nowhere = nowhere.to_str().unwrap();
    for (subject, status, mend, args) in [
        ("ffmpeg", 5, "--ffmpeg", &["--ffmpeg", "/bin/true"][..]),
        ("ffprobe", 5, "--ffprobe", &["--ffprobe", "/bin/true"]),
        ("port", 4, "--listen", &["--listen", "203.0.113.1:80"]),
        ("data directory", 7, "", &["--data-dir", busy]),
    ] {
        let mut args = args.to_vec();
        if subject != "data directory" {
            args.extend(["--data-dir", nowhere]);
        }
        let (ended, found) = finding(subject, &args).await;
        assert_eq!(
            (ended, &found["grade"]),
            (status, &Value::from("failure")),
            "{found:#}"
        );
        let said = found["mend"].as_str().unwrap();
        assert!(!said.is_empty() && said.contains(mend), "{found:#}");
    }
}

#[tokio::test]
async fn the_doctor_finds_a_busy_port() {
    let setup = Setup::new();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let data = setup.data();
    let (_, found) = finding(
        "port",
        &["--listen", &address, "--data-dir", data.to_str().unwrap()],
    )
    .await;
    assert_eq!(found["grade"], "warning", "{found:#}");
    assert!(found["found"].as_str().unwrap().contains(&address), "{found:#}");
    assert!(found["mend"].as_str().unwrap().contains("--listen"), "{found:#}");
    drop(busy);
    let (_, found) = finding(
        "port",
        &["--listen", &address, "--data-dir", data.to_str().unwrap()],
    )
    .await;
    assert_eq!(found["grade"], "ok", "{found:#}");
}

#[tokio::test]
async fn the_doctor_finds_a_locked_data_directory_and_disturbs_nothing() {
    let setup = Setup::of(&["upright.mp4"]);
    let server = setup.start().await;
    let data = setup.data();
    let (_, found) = finding("data directory", &["--data-dir", data.to_str().unwrap()]).await;
    assert_eq!(found["grade"], "warning", "{found:#}");
    assert!(
        found["found"].as_str().unwrap().contains(data.to_str().unwrap()),
        "{found:#}"
    );
    server.film("upright.mp4").await;
    server.stop().await;
    let (_, found) = finding("data directory", &["--data-dir", data.to_str().unwrap()]).await;
    assert_eq!(found["grade"], "ok", "{found:#}");
}

#[tokio::test]
async fn the_doctor_speaks_to_people_too() {
    let setup = Setup::new();
    let data = setup.data();
    let mut command = program(env!("CARGO_BIN_EXE_ether"));
    command
        .args(["doctor", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data);
    let text = String::from_utf8(run(&mut command).await.stdout).unwrap();
    assert!(
        text.contains("ok    ffmpeg         ffmpeg version") && text.contains("libx264 and aac"),
        "{text}"
    );
    assert!(!Path::new(&data).exists(), "a doctor changes nothing");
}

#[tokio::test]
async fn a_flag_is_its_variable() {
    let setup = Setup::new();
    let mut command = program(env!("CARGO_BIN_EXE_ether"));
    command
        .args(["doctor", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(setup.data())
        .env("ETHER_DOCTOR_JSON", "1");
    let findings: Value = serde_json::from_slice(&run(&mut command).await.stdout).unwrap();
    assert!(findings.is_array(), "{findings:#}");
}

#[tokio::test]
async fn the_help_lists_every_variable_and_every_exit_status() {
    let (status, environment) = ether(&["help", "environment"]).await;
    assert_eq!(status, 0);
    let (_, serve) = ether(&["serve", "--help"]).await;
    let mut named = 0;
    for variable in serve
        .split("[env: ")
        .skip(1)
        .filter_map(|rest| rest.split([']', '=']).next())
    {
        assert!(
            environment.contains(variable),
            "{variable} is not in the list: {environment}"
        );
        named += 1;
    }
    assert!(named >= 10, "{serve}");
    for variable in ["ETHER_LOG", "ETHER_LOG_FORMAT", "NO_COLOR", "ETHER_DOCTOR_JSON"] {
        assert!(environment.contains(variable), "{variable} is not in the list");
    }
    for status in ["0 ", "2 ", "3 ", "4 ", "5 ", "6 ", "7 ", "130 "] {
        assert!(
            serve.contains(&format!("\n  {status}")),
            "{status} is not in the help: {serve}"
        );
    }
    let (status, text) = ether(&["serve"]).await;
    assert_eq!(status, 2, "{text}");
    assert!(text.contains("--media"), "{text}");
}

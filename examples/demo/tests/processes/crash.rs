//! Either half is killed or stopped: the other half reports it, and a restart works at once.

#[cfg(test)]
mod tests {
    use crate::scene::{PATIENCE, Scene, Server, exit_code};
    use nix::sys::signal::Signal;
    use trunkline_testkit::Process;

    /// Number of calls, far more than are made before a half is killed or stopped.
    const ENDLESS: u64 = 1_000_000_000;

    /// Starts a server, and a client in the middle of its calls.
    fn running(scene: &Scene) -> (Server, Process) {
        let server = scene.server();
        let mut client = scene.client(&server, ENDLESS);
        client.find(PATIENCE, |line| line.contains("files done")).expect("the client got to its calls");
        (server, client)
    }

    fn is_unavailable(line: &str) -> bool {
        line.starts_with("demo client: ") && line.contains("Unavailable")
    }

    fn names_the_peer(line: &str) -> bool {
        line.contains("stopped answering")
    }

    /// Returns true if a line reports a dead peer. A device of the same host ends the connections of a dead
    /// process, as the process itself could.
    fn names_the_dead(line: &str) -> bool {
        names_the_peer(line) || line.contains("closed the session") || line.contains("ended the session")
    }

    fn completes(scene: &Scene, server: &Server) {
        let mut client = scene.client(server, 100);
        assert_eq!(exit_code(&mut client, PATIENCE), Some(0), "a new client works at once");
    }

    #[test]
    fn a_killed_server_is_reported_and_its_restart_works() {
        let scene = Scene::new();
        let (server, mut client) = running(&scene);
        server.process.signal(Signal::SIGKILL);
        client.find(PATIENCE, is_unavailable).expect("it is reported");
        assert_eq!(exit_code(&mut client, PATIENCE), Some(1));
        drop((server, client));
        completes(&scene, &scene.server());
    }

    #[test]
    fn a_killed_client_is_reported_and_its_restart_works() {
        let scene = Scene::new();
        let (mut server, client) = running(&scene);
        client.signal(Signal::SIGKILL);
        server.process.find(PATIENCE, names_the_dead).expect("it is reported");
        drop(client);
        completes(&scene, &server);
    }

    #[test]
    fn a_stopped_server_is_reported() {
        let scene = Scene::new();
        let (server, mut client) = running(&scene);
        server.process.signal(Signal::SIGSTOP);
        client.find(PATIENCE, is_unavailable).expect("it is reported");
        assert_eq!(exit_code(&mut client, PATIENCE), Some(1));
        server.process.signal(Signal::SIGCONT);
        drop(client);
        completes(&scene, &server);
    }

    #[test]
    fn a_stopped_client_is_reported_and_recovers_or_reports_why_not() {
        let scene = Scene::new();
        let (mut server, mut client) = running(&scene);
        client.signal(Signal::SIGSTOP);
        server.process.find(PATIENCE, names_the_peer).expect("it is reported");
        client.signal(Signal::SIGCONT);
        // A call that was at the server is lost and fails; between two calls a new session comes up.
        let came = client.find(PATIENCE, |line| is_unavailable(line) || line.contains("session up"));
        if is_unavailable(&came.expect("the client learns that its session is over")) {
            assert_eq!(exit_code(&mut client, PATIENCE), Some(1));
        }
        drop(client);
        completes(&scene, &server);
    }
}

//! Test support for the Kubernetes adapter on a real API server: a connected adapter, and faults.

use madako_kubernetes::{ApiServer, ApiServerAccess, Limits};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::process::Child;

use crate::pki::{Authority, Pair};
use crate::server::{Server, restrict};

impl Server {
    pub(crate) fn adapter(&self, token: &str, limits: Limits) -> ApiServer {
        let access = ApiServerAccess::read(&self.kubeconfig("adapter", &self.token(token))).unwrap();
        ApiServer::new(&access, limits).unwrap()
    }

    pub(crate) fn adapter_by_certificate(&self, user: &str) -> ApiServer {
        let pair = self.authority.client(user, "people");
        for (name, text) in [("client.crt", &pair.certificate), ("client.key", &pair.key)] {
            std::fs::write(self.directory.path().join(name), text).unwrap();
            restrict(&self.directory.path().join(name));
        }
        let user = "{client-certificate: client.crt, client-key: client.key}";
        let access = ApiServerAccess::read(&self.kubeconfig("by-certificate", user)).unwrap();
        ApiServer::new(&access, Limits::default()).unwrap()
    }

    /// Stops the process of the API server: connections stay open without answers.
    pub(crate) fn freeze(&self) {
        signal(&self.api, Signal::STOP);
        // Its threads stop one after another, and one of them may still answer.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid_of(&self.api)), stopped).unwrap();
    }

    pub(crate) fn thaw(&self) {
        signal(&self.api, Signal::CONT);
    }

    pub(crate) async fn kill(&mut self) {
        self.api.kill().await.unwrap();
    }
}

impl Authority {
    /// A client certificate: Kubernetes uses the common name as the user and the organization as its group.
    pub(crate) fn client(&self, user: &str, group: &str) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }
}

fn pid_of(child: &Child) -> Pid {
    let id = child.id().expect("it runs");
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(pid_of(child), signal).unwrap();
}

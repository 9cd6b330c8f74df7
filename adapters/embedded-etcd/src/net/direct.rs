//! A client of the embedded store without a connection: its calls go directly to the gRPC services.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use etcd_client::{Channel, Client};
use tonic::body::Body;
use tower::Service;
use tower::util::BoxCloneSyncService;

/// Adapts the services to the client's channel.
#[derive(Clone)]
struct DirectTransport(Router);

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, tower::BoxError>> + Send>>;

impl Service<http::Request<Body>> for DirectTransport {
    type Response = http::Response<Body>;
    type Error = tower::BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.0, context)
            .map_err(|never: Infallible| match never {})
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            match answer.await {
                Ok(response) => Ok(response.map(Body::new)),
                Err(never) => match never {},
            }
        })
    }
}

pub(crate) async fn direct_client(router: Router) -> Result<Client, etcd_client::Error> {
    Client::from_channel(Channel::Custom(BoxCloneSyncService::new(DirectTransport(router))), None).await
}

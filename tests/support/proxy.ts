import http from "node:http";
import net from "node:net";

/** A proxy as companies have them, that remembers what is asked of it. */
export interface Proxy {
  /** With a user and a password. */
  readonly address: string;
  readonly asked: Asked[];
  stop(): void;
}

export interface Asked {
  readonly method: string;
  /** A whole address, or host and port of a tunnel. */
  readonly target: string;
  readonly headers: http.IncomingHttpHeaders;
}

/** Starts a proxy. It passes on what is not encrypted; its tunnels lead to one port of this machine, or nowhere. */
export async function startProxy(tunnelPort?: number): Promise<Proxy> {
  const asked: Asked[] = [];
  const remember = ({ method = "", url = "", headers }: http.IncomingMessage): void => {
    asked.push({ method, target: url, headers });
  };
  const server = http.createServer((request, response) => {
    remember(request);
    const { method, url = "" } = request;
    const headers = { ...request.headers };
    delete headers["proxy-authorization"];
    const onward = http.request(url, { method, headers }, (answer) => {
      response.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(response);
    });
    request.pipe(onward);
  });
  server.on("connect", (request: http.IncomingMessage, socket: net.Socket) => {
    remember(request);
    socket.on("error", () => undefined);
    if (tunnelPort === undefined) {
      socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
      return;
    }
    const onward = net.connect(tunnelPort, "127.0.0.1", () => {
      socket.write("HTTP/1.1 200 OK\r\n\r\n");
      socket.pipe(onward).pipe(socket);
    });
    onward.on("error", () => socket.destroy());
  });
  const { promise, resolve } = Promise.withResolvers<void>();
  server.listen(0, "127.0.0.1", resolve);
  await promise;
  const { port } = server.address() as net.AddressInfo;
  return {
    address: `http://user:swordfish@127.0.0.1:${port}`,
    asked,
    stop() {
      server.closeAllConnections();
      server.close();
    },
  };
}

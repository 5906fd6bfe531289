/** Who is answered by an agent or a controller. */
import type { Logger } from '../../lib/platform/logs.ts';
import { ControlAccess } from '../../lib/rpc/control-access.ts';
import { type TlsFlags, tlsFilesOf } from '../../lib/rpc/credential-options.ts';
import { TlsIdentity } from '../../lib/rpc/tls-identity.ts';

export interface EndpointFiles extends TlsFlags {
  readonly tokenFile: string | undefined;
}

/** @throws CubeError when a file is unreadable, or is not what it should be */
export function openAccess(
  config: EndpointFiles,
  logger: Logger,
): { readonly access: ControlAccess; readonly tls: TlsIdentity | undefined } {
  const files = tlsFilesOf(config);
  const access = new ControlAccess({
    ...{ tokenFile: config.tokenFile, certificates: files !== undefined, logger },
    flags: 'token-file or tls-ca',
  });
  return { access, tls: files && new TlsIdentity(files, logger) };
}

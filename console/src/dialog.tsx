/** Dialogs: the control token, and the confirmation of an action. */
import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import {
  type Connection,
  type HttpError,
  requestJson,
  setToken,
  toHttpError,
} from './connection.ts';

function Dialog({
  title,
  children,
  onClose,
}: {
  title: string;
  children: ComponentChildren;
  onClose?: () => void;
}): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (dialog.current?.open === false) dialog.current.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={onClose} aria-label={title}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

export function TokenDialog({
  title,
  message,
  onDone,
}: {
  title: string;
  message: string;
  onDone: () => void;
}): JSX.Element {
  const [text, setText] = useState('');
  const submit = (event: Event): void => {
    event.preventDefault();
    setToken(text);
    onDone();
  };
  return (
    <form class="card token" onSubmit={submit}>
      <h2>{title}</h2>
      <p class="error" role="alert">
        {message}
      </p>
      <label>
        Control token
        <input
          type="password"
          name="token"
          autocomplete="off"
          value={text}
          onInput={({ currentTarget }) => setText(currentTarget.value)}
        />
      </label>
      <p class="muted">It stays in this page's memory until the page is closed.</p>
      <button type="submit" class="primary" disabled={text.trim() === ''}>
        Continue
      </button>
    </form>
  );
}

export interface Action {
  /** Such as "Roll back stable". */
  readonly title: string;
  /** What will happen. */
  readonly text: string;
  readonly path: string;
  readonly body: Readonly<Record<string, unknown>>;
  readonly isDangerous?: boolean;
}

/** Kept for the next action of this page. */
let lastAuthor = '';

/** Asks for a reason and sends the action. */
export function ActionDialog({
  action,
  connection,
  onClose,
}: {
  action: Action;
  connection: Connection;
  onClose: (isDone: boolean) => void;
}): JSX.Element {
  const [reason, setReason] = useState('');
  const [by, setBy] = useState(lastAuthor);
  const [token, enterToken] = useState('');
  const [error, setError] = useState<HttpError>();
  const [isBusy, setBusy] = useState(false);
  const isLost = connection.error !== undefined;
  // Once the process answers again, it is wrong that it does not.
  useEffect(() => {
    if (!isLost) setError((known) => (known?.status === 0 ? undefined : known));
  }, [isLost]);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    lastAuthor = by;
    if (token !== '') setToken(token);
    try {
      await requestJson(action.path, { ...action.body, reason, ...(by !== '' && { by }) });
      onClose(true);
    } catch (cause) {
      setError(toHttpError(cause));
      setBusy(false);
    }
  };
  return (
    <Dialog title={action.title} onClose={() => onClose(false)}>
      <form onSubmit={submit}>
        <p>{action.text}</p>
        <label>
          Reason
          <input
            name="reason"
            required
            maxLength={500}
            value={reason}
            onInput={({ currentTarget }) => setReason(currentTarget.value)}
          />
        </label>
        <label>
          Your name
          <input
            name="by"
            maxLength={100}
            placeholder="console"
            value={by}
            onInput={({ currentTarget }) => setBy(currentTarget.value)}
          />
        </label>
        {error !== undefined && (
          <p class="error" role="alert">
            {error.message}
          </p>
        )}
        {error?.status === 403 && (
          <label>
            Control token
            <input
              type="password"
              name="token"
              autocomplete="off"
              value={token}
              onInput={({ currentTarget }) => enterToken(currentTarget.value)}
            />
          </label>
        )}
        <div class="buttons">
          <button type="button" onClick={() => onClose(false)}>
            Cancel
          </button>
          <button
            type="submit"
            class={action.isDangerous ? 'danger' : 'primary'}
            disabled={isBusy || reason.trim() === ''}
          >
            {isBusy ? 'Working …' : action.title}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** Light or dark: as the system prefers, until the user chooses. */
import { useEffect, useState } from 'preact/hooks';

export type Theme = 'light' | 'dark';

const dark = matchMedia('(prefers-color-scheme: dark)');
const listeners = new Set<() => void>();
let chosen: Theme | undefined;

function currentTheme(): Theme {
  return chosen ?? (dark.matches ? 'dark' : 'light');
}

function apply(): void {
  document.documentElement.dataset['theme'] = currentTheme();
  for (const listener of listeners) listener();
}

export function toggleTheme(): void {
  chosen = currentTheme() === 'dark' ? 'light' : 'dark';
  apply();
}

dark.addEventListener('change', apply);
apply();

export function useTheme(): Theme {
  const [theme, setTheme] = useState(currentTheme());
  useEffect(() => {
    const listener = (): void => setTheme(currentTheme());
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }, []);
  return theme;
}

// The steps that all charts of the page show, and who is notified of a change.
import type { Extent } from "./data";

export class Shown {
  private listeners = new Set<() => void>();
  private chosen: Extent | null = null; // null: everything

  constructor(private whole: Extent) {}

  get range(): Extent {
    return this.chosen ?? this.whole;
  }

  get isZoomed(): boolean {
    return this.chosen !== null;
  }

  // What there is grows while a run trains; what somebody looks at stays.
  grow(whole: Extent) {
    if (whole.low === this.whole.low && whole.high === this.whole.high) return;
    this.whole = whole;
    if (!this.chosen) this.notify();
  }

  choose(range: Extent | null) {
    if (!range) {
      this.chosen = null;
      return this.notify();
    }
    const wide = Math.min(Math.max(range.high - range.low, 2), this.whole.high - this.whole.low);
    const low = Math.min(Math.max(range.low, this.whole.low), this.whole.high - wide);
    this.chosen = wide >= this.whole.high - this.whole.low ? null : { low, high: low + wide };
    this.notify();
  }

  // By a share of what is shown.
  pan(share: number) {
    const { low, high } = this.range;
    const by = (high - low) * share;
    this.choose({ low: low + by, high: high + by });
  }

  zoom(factor: number) {
    const { low, high } = this.range;
    const half = ((high - low) * factor) / 2;
    this.choose({ low: (low + high) / 2 - half, high: (low + high) / 2 + half });
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private notify() {
    for (const listener of this.listeners) listener();
  }
}

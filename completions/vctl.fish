# fish completion for vctl, printed by `vctl completion fish`; vctl itself knows the words.
function __vctl_complete
    set -l words (commandline -opc)[2..-1]
    set -l cur (commandline -ct)
    set -l name (string match -r -- '^--[^=]*=' "$cur")
    set -l path (string replace -- "$name" '' "$cur")
    for line in (vctl __complete $words "$cur" 2>/dev/null)
        switch $line
            case ':dir'
                printf "$name%s\n" (__fish_complete_directories "$path")
            case ':file' ':command*'
                printf "$name%s\n" (__fish_complete_path "$path")
                test "$line" = ":command "(count $words); and __fish_complete_command
            case '*'
                printf "$name%s\n" "$line"
        end
    end
end
complete -c vctl -f -a '(__vctl_complete)'
